/* SPDX-License-Identifier: Apache-2.0 */
/* Token endpoints of OAuth 2.0 (RFC 6749), as Google's and Microsoft's clouds have them. */
#include "base/clock.h"
#include "base/error.h"
#include "transport/object/object.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TOKEN_BYTES 16384u
#define MOST_LIFETIME_S 864000u

void heft_object_form_add(struct heft_buf *form, const char *name, const char *value)
{
    heft_buf_printf(form, "%s%s=", form->size ? "&" : "", name);
    heft_object_encode(form, value, strlen(value), 0);
}

/* A number, or the text of one: services differ. */
static uint64_t number_of(const json_t *value)
{
    const char *text = json_string_value(value);

    if (json_is_integer(value) && json_integer_value(value) > 0)
        return (uint64_t)json_integer_value(value);
    return text && text[0] >= '0' && text[0] <= '9' ? strtoull(text, NULL, 10) : 0;
}

int heft_object_take_bearer(const struct heft_object_ask *ask, struct heft_object_secrets *secrets_out,
                            struct heft_error *error)
{
    json_t *root = json_loads((const char *)ask->answer.data, 0, NULL);
    const char *token = json_string_value(json_object_get(root, "access_token"));
    uint64_t seconds = number_of(json_object_get(root, "expires_in"));
    uint64_t when = number_of(json_object_get(root, "expires_on")), now = heft_wall_ms();
    struct heft_object_secrets secrets = {.auth = HEFT_OBJECT_BEARER};
    int rc = HEFT_OK;

    if (!token || !token[0] || strlen(token) > MOST_TOKEN_BYTES)
        rc = heft_error_set(error, HEFT_ERR_DENIED, "the answer holds no access token");
    else if (!(secrets.token = calloc(1, strlen(token) + 1)))
        rc = heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for credentials");
    else
        rc = heft_object_copy(secrets.token, strlen(token) + 1, token, "the access token", error);
    if (seconds > 0 && seconds < MOST_LIFETIME_S)
        secrets.expires_ms = now + seconds * 1000;
    else if (when > now / 1000 && when - now / 1000 < MOST_LIFETIME_S)
        secrets.expires_ms = when * 1000;
    json_decref(root);
    if (rc) {
        heft_object_secrets_free(&secrets);
        return rc;
    }
    *secrets_out = secrets;
    return HEFT_OK;
}

int heft_object_form_post(const char *url, struct heft_buf *form, const uint32_t *cancel,
                          struct heft_object_secrets *secrets_out, struct heft_error *error)
{
    struct heft_object_ask ask = {.method = "POST", .url = url, .cancel = cancel};
    json_t *root;
    int rc;

    heft_buf_u8(form, 0);
    if (form->failed)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "out of memory for credentials");
    if (!heft_object_is_web(url) ||
        (!heft_object_is_private(url) && !heft_object_variable("HEFT_OBJECT_PLAIN_CREDENTIALS")))
        return heft_error_set(error, HEFT_ERR_DENIED, "its token endpoint is no https URL");
    ask.body = (const char *)form->data;
    ask.headers[0] = "Content-Type: application/x-www-form-urlencoded";
    rc = heft_object_ask(&ask, error);
    if (rc && ask.answer.size > 1 && (root = json_loads((const char *)ask.answer.data, 0, NULL)) != NULL) {
        const char *what = json_string_value(json_object_get(root, "error"));
        const char *more = json_string_value(json_object_get(root, "error_description"));

        if (what)
            (void)heft_error_prefix(error, rc, "%.64s (%.160s)", what, more ? more : "no more is told");
        json_decref(root);
    }
    if (!rc)
        rc = heft_object_take_bearer(&ask, secrets_out, error);
    heft_object_ask_free(&ask);
    return rc;
}
