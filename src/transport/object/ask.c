/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One small question to an identity service (a token endpoint, an instance's metadata), on the calling
 * thread. What it says and answers are secrets: nothing of either is logged or stands in an error, but the
 * URL without its query and the status.
 */
#include "base/clock.h"
#include "base/error.h"
#include "transport/object/object.h"

#include <openssl/crypto.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ANSWER_LIMIT_BYTES ((size_t)1 << 20)

static size_t on_answer(char *data, size_t one, size_t size, void *context)
{
    struct heft_object_ask *ask = context;

    heft_buf_bytes(&ask->answer, data, size * one);
    return ask->answer.failed ? 0 : size * one;
}

static int on_progress(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const struct heft_object_ask *ask = context;

    (void)a, (void)b, (void)c, (void)d;
    return ask->cancel && __atomic_load_n(ask->cancel, __ATOMIC_RELAXED) != 0;
}

/* Link-local and loopback services are never behind a proxy. */
static int is_near(const char *url)
{
    return !strncasecmp(url, "http://169.254.", 15) ||
           (!strncasecmp(url, "http://", 7) && heft_object_is_private(url));
}

static CURLcode attempt(struct heft_object_ask *ask, CURL *easy, struct curl_slist *headers, char *text)
{
    const char *bundle = heft_object_variable("HEFT_CA_BUNDLE");
    long timeout = ask->timeout_ms ? (long)ask->timeout_ms : 10000L;
    CURLcode code;

    heft_object_ask_free(ask);
    heft_buf_init(&ask->answer, ANSWER_LIMIT_BYTES);
    ask->status = 0;
    curl_easy_reset(easy);
    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(easy, CURLOPT_URL, ask->url);
    (void)curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, timeout);
    (void)curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, text);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_answer);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, ask);
    (void)curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
    (void)curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_progress);
    (void)curl_easy_setopt(easy, CURLOPT_XFERINFODATA, ask);
    if (bundle)
        (void)curl_easy_setopt(easy, CURLOPT_CAINFO, bundle);
    if (is_near(ask->url))
        (void)curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    if (ask->body) {
        (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(ask->body));
        (void)curl_easy_setopt(easy, CURLOPT_COPYPOSTFIELDS, ask->body);
    }
    if (ask->method)
        (void)curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, ask->method);
    code = curl_easy_perform(easy);
    (void)curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &ask->status);
    return code;
}

static int is_worth_again(CURLcode code, long status)
{
    return code != CURLE_OK ? code != CURLE_ABORTED_BY_CALLBACK && code != CURLE_PEER_FAILED_VERIFICATION
                            : status == 408 || status == 429 || status >= 500;
}

static void pause_ms(const struct heft_object_ask *ask, uint64_t ms)
{
    uint64_t end = heft_now_ns() + ms * HEFT_NS_PER_MS;
    const struct timespec step = {.tv_nsec = 20000000};

    while (heft_now_ns() < end && !on_progress((void *)(uintptr_t)ask, 0, 0, 0, 0))
        (void)nanosleep(&step, NULL);
}

int heft_object_ask(struct heft_object_ask *ask, struct heft_error *error)
{
    uint32_t left = ask->attempts ? ask->attempts : 3, tried = 0;
    char text[CURL_ERROR_SIZE] = "", *shown = heft_object_shown(ask->url);
    struct curl_slist *headers = NULL, *grown;
    CURL *easy = NULL;
    CURLcode code = CURLE_OK;
    size_t index;
    int rc = heft_object_curl_init(error);

    if (!rc && (!shown || !(easy = curl_easy_init())))
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for an HTTP request");
    for (index = 0; !rc && index < sizeof(ask->headers) / sizeof(ask->headers[0]) && ask->headers[index];
         index++) {
        grown = curl_slist_append(headers, ask->headers[index]);
        headers = grown ? grown : headers;
        if (!grown)
            rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for an HTTP request");
    }
    while (!rc) {
        code = attempt(ask, easy, headers, text);
        tried++;
        if (--left == 0 || !is_worth_again(code, ask->status))
            break;
        pause_ms(ask, 100u << tried);
    }
    heft_buf_u8(&ask->answer, 0);
    if (!rc && code != CURLE_OK)
        rc = heft_error_set(error,
                            code == CURLE_ABORTED_BY_CALLBACK ? HEFT_ERR_CANCELED : HEFT_ERR_UNAVAILABLE,
                            "%s: %.160s", shown, text[0] ? text : curl_easy_strerror(code));
    else if (!rc && (ask->status < 200 || ask->status > 299))
        rc = heft_error_set(error,
                            ask->status == 404                         ? HEFT_ERR_NOT_FOUND
                            : ask->status >= 500 || ask->status == 429 ? HEFT_ERR_UNAVAILABLE
                                                                       : HEFT_ERR_DENIED,
                            "%s answered %ld", shown, ask->status);
    else if (!rc && ask->answer.failed)
        rc = heft_error_set(error, ask->answer.failed, "%s: its answer is too long", shown);
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
    free(shown);
    return rc;
}

void heft_object_ask_free(struct heft_object_ask *ask)
{
    if (ask->answer.data)
        OPENSSL_cleanse(ask->answer.data, ask->answer.size);
    heft_buf_free(&ask->answer);
}
