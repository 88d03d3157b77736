/* SPDX-License-Identifier: Apache-2.0 */
/* The object transport without a network: URLs, signatures, S3's XML, and parts that tile their operation. */
#include "base/error.h"
#include "format/s3_xml.h"
#include "transport/object/object.h"
#include "transport/object/parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- URLs ---- */

static void check_shown(const char *url, const char *expected)
{
    char *shown = heft_object_shown(url);

    assert_string_equal(shown, expected);
    free(shown);
}

static void a_shown_url_holds_no_secret(void **state)
{
    (void)state;
    check_shown("https://host/a/b", "https://host/a/b");
    check_shown("https://user:pa@ss@host:81/a?X-Amz-Signature=secret#part", "https://host:81/a");
    check_shown("http://host?token=1", "http://host");
    check_shown("https://host/a@b", "https://host/a@b");
    check_shown("s3://bucket/what?is#this", "s3://bucket/what?is#this");
}

static void check_join(const char *url, const char *name, const char *expected)
{
    char *joined = heft_object_join(url, name);

    assert_string_equal(joined, expected);
    free(joined);
}

static void a_name_joins_before_the_query_and_is_encoded(void **state)
{
    (void)state;
    check_join("https://h/a", "m.safetensors", "https://h/a/m.safetensors");
    check_join("https://h/a/?sig=1", "m 1+%?.s", "https://h/a/m%201%2B%25%3F.s?sig=1");
    check_join("https://h/a#x", "sub/m", "https://h/a/sub/m");
    check_join("s3://b/a", "m 1?", "s3://b/a/m 1?");
    check_join("s3://b", "m", "s3://b/m");
}

static void only_loopback_and_tls_are_private(void **state)
{
    (void)state;
    assert_true(heft_object_is_private("https://far.example/a"));
    assert_true(heft_object_is_private("http://127.0.0.1:80/a"));
    assert_true(heft_object_is_private("http://u:p@localhost/a"));
    assert_true(heft_object_is_private("http://[::1]:9/a"));
    assert_false(heft_object_is_private("http://localhost.evil/a"));
    assert_false(heft_object_is_private("http://127.0.0.1.evil/a"));
    assert_false(heft_object_is_private("http://127.0.0.1@evil/a"));
    assert_false(heft_object_is_private("http://10.0.0.1/a"));
}

/* ---- signatures: the examples of the service's documentation ---- */

static void check_signature(const char *query, const char *signature)
{
    struct heft_sigv4 what = {.method = "GET",
                              .host = "examplebucket.s3.amazonaws.com",
                              .path = "/",
                              .query = query,
                              .region = "us-east-1",
                              .service = "s3",
                              .access_key = "AKIAIOSFODNN7EXAMPLE",
                              .secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                              .time = "20130524T000000Z"};
    char text[512], expected[512];

    assert_int_equal(heft_sigv4_sign(&what, text, sizeof(text)), 0);
    (void)snprintf(expected, sizeof(expected),
                   "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
                   "SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature=%s",
                   signature);
    assert_string_equal(text, expected);
}

static void signatures_are_those_of_the_published_examples(void **state)
{
    (void)state;
    check_signature("lifecycle=", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
    check_signature("max-keys=2&prefix=J",
                    "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

static void a_signature_that_does_not_fit_is_refused(void **state)
{
    struct heft_sigv4 what = {.method = "GET",
                              .host = "h",
                              .path = "/",
                              .query = "",
                              .region = "r",
                              .service = "s3",
                              .access_key = "a",
                              .secret_key = "s",
                              .time = "20130524T000000Z"};
    char text[64];

    (void)state;
    assert_int_equal(heft_sigv4_sign(&what, text, sizeof(text)), HEFT_ERR_TOO_LARGE);
}

/* ---- credentials ---- */

static void clear_environment(void)
{
    static const char *const names[] = {"AWS_ACCESS_KEY_ID",
                                        "AWS_SECRET_ACCESS_KEY",
                                        "AWS_SESSION_TOKEN",
                                        "AWS_PROFILE",
                                        "AWS_REGION",
                                        "AWS_DEFAULT_REGION",
                                        "AWS_ENDPOINT_URL",
                                        "AWS_ENDPOINT_URL_S3",
                                        "HEFT_S3_ADDRESSING",
                                        "AWS_CONFIG_FILE",
                                        "AWS_SHARED_CREDENTIALS_FILE",
                                        "HEFT_OBJECT_PLAIN_CREDENTIALS",
                                        "HEFT_OBJECT_RETRIES",
                                        "HEFT_OBJECT_CONNECTIONS",
                                        "AWS_ROLE_ARN",
                                        "AWS_WEB_IDENTITY_TOKEN_FILE",
                                        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                                        "AZURE_STORAGE_ACCOUNT",
                                        "AZURE_STORAGE_KEY",
                                        "AZURE_STORAGE_CONNECTION_STRING",
                                        "GS_ACCESS_KEY_ID",
                                        "HF_ENDPOINT",
                                        "HF_TOKEN"};
    size_t index;

    for (index = 0; index < sizeof(names) / sizeof(names[0]); index++)
        (void)unsetenv(names[index]);
    (void)setenv("HOME", "/nonexistent", 1);
    (void)setenv("AWS_EC2_METADATA_DISABLED", "true", 1); /* no network in unit tests */
}

static int make_store(enum heft_object_service service, struct heft_object_stores *stores,
                      struct heft_object_secrets *secrets, struct heft_error *error)
{
    int rc;

    *stores = (struct heft_object_stores){0};
    *secrets = (struct heft_object_secrets){0};
    rc = heft_object_stores_use(stores, service, error);
    if (!rc && stores->of[service]->login)
        assert_int_equal(heft_object_login_get(stores->of[service]->login, secrets), 0);
    return rc;
}

static void free_store(struct heft_object_stores *stores, struct heft_object_secrets *secrets)
{
    heft_object_secrets_free(secrets);
    heft_object_stores_free(stores);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");

    assert_non_null(file);
    assert_int_equal(fputs(text, file) >= 0, 1);
    assert_int_equal(fclose(file), 0);
}

static void without_anything_requests_go_unsigned_to_us_east_1(void **state)
{
    struct heft_object_stores stores;
    struct heft_object_secrets secrets;
    const struct heft_object_store *store;

    (void)state;
    clear_environment();
    assert_int_equal(make_store(HEFT_OBJECT_S3, &stores, &secrets, NULL), 0);
    store = stores.of[HEFT_OBJECT_S3];
    assert_null(store->login);
    assert_string_equal(store->region, "us-east-1");
    assert_false(store->path_style);
    free_store(&stores, &secrets);
}

static void the_environment_goes_before_the_profile(void **state)
{
    char credentials[] = "/tmp/heft-test-credentials-XXXXXX";
    struct heft_object_stores stores;
    struct heft_object_secrets secrets;
    const struct heft_object_store *store;
    int fd = mkstemp(credentials);

    (void)state;
    assert_true(fd >= 0);
    (void)fclose(fdopen(fd, "w"));
    write_file(credentials, "; a comment\n[default]\naws_access_key_id=AK1\naws_secret_access_key = S1 \n"
                            "[ work ]\naws_access_key_id = AK2\naws_secret_access_key = S2\n"
                            "aws_session_token = T2==\n");
    clear_environment();
    (void)setenv("AWS_SHARED_CREDENTIALS_FILE", credentials, 1);
    assert_int_equal(make_store(HEFT_OBJECT_S3, &stores, &secrets, NULL), 0);
    assert_string_equal(secrets.access_key, "AK1");
    assert_string_equal(secrets.secret_key, "S1");
    assert_null(secrets.token);
    free_store(&stores, &secrets);
    (void)setenv("AWS_PROFILE", "work", 1);
    assert_int_equal(make_store(HEFT_OBJECT_S3, &stores, &secrets, NULL), 0);
    assert_string_equal(secrets.secret_key, "S2");
    assert_string_equal(secrets.token, "T2==");
    free_store(&stores, &secrets);
    (void)setenv("AWS_ACCESS_KEY_ID", "AK3", 1);
    (void)setenv("AWS_SECRET_ACCESS_KEY", "S3", 1);
    (void)setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9/", 1);
    (void)setenv("AWS_DEFAULT_REGION", "eu-x", 1);
    assert_int_equal(make_store(HEFT_OBJECT_S3, &stores, &secrets, NULL), 0);
    store = stores.of[HEFT_OBJECT_S3];
    assert_string_equal(secrets.access_key, "AK3");
    assert_string_equal(store->endpoint, "http://127.0.0.1:9");
    assert_string_equal(store->region, "eu-x");
    assert_true(store->path_style);
    free_store(&stores, &secrets);
    assert_int_equal(remove(credentials), 0);
}

static void refused_store(int code, const char *word)
{
    struct heft_object_stores stores;
    struct heft_object_secrets secrets;
    struct heft_error error = HEFT_ERROR_INIT;

    assert_int_equal(make_store(HEFT_OBJECT_S3, &stores, &secrets, &error), code);
    assert_null(stores.of[HEFT_OBJECT_S3]);
    assert_non_null(strstr(error.text, word));
    assert_null(strstr(error.text, "hidden"));
}

static void half_a_key_a_lost_profile_and_a_plain_token_are_refused(void **state)
{
    (void)state;
    clear_environment();
    (void)setenv("AWS_ACCESS_KEY_ID", "hidden", 1);
    refused_store(HEFT_ERR_INVALID, "half");
    (void)setenv("AWS_SECRET_ACCESS_KEY", "hidden key", 1);
    refused_store(HEFT_ERR_INVALID, "secret key");
    (void)setenv("AWS_SECRET_ACCESS_KEY", "hidden", 1);
    (void)setenv("AWS_SESSION_TOKEN", "hidden", 1);
    (void)setenv("AWS_ENDPOINT_URL", "http://far.example:9000", 1);
    refused_store(HEFT_ERR_DENIED, "HEFT_OBJECT_PLAIN_CREDENTIALS");
    (void)setenv("AWS_ENDPOINT_URL", "http://far.example:9000/path", 1);
    refused_store(HEFT_ERR_INVALID, "AWS_ENDPOINT_URL");
    clear_environment();
    (void)setenv("AWS_PROFILE", "nobody", 1);
    refused_store(HEFT_ERR_NOT_FOUND, "nobody");
    clear_environment();
}

static void limits_that_are_no_numbers_are_refused(void **state)
{
    static const char *const wrong[] = {"-1", "x", "5x", "99999999999999999999", "101", " 5"};
    struct heft_object_limits limits;
    struct heft_error error = HEFT_ERROR_INIT;
    size_t index;

    (void)state;
    clear_environment();
    assert_int_equal(heft_object_limits_read(&limits, NULL), 0);
    assert_int_equal(limits.retries, 5);
    for (index = 0; index < sizeof(wrong) / sizeof(wrong[0]); index++) {
        (void)setenv("HEFT_OBJECT_RETRIES", wrong[index], 1);
        assert_int_equal(heft_object_limits_read(&limits, &error), HEFT_ERR_INVALID);
        assert_non_null(strstr(error.text, "HEFT_OBJECT_RETRIES"));
    }
    clear_environment();
}

static void a_learned_region_must_be_a_region(void **state)
{
    char region[64];

    (void)state;
    assert_true(heft_object_region_set("unit-bucket", "eu-west-1"));
    assert_true(heft_object_region_of("unit-bucket", region));
    assert_string_equal(region, "eu-west-1");
    assert_false(heft_object_region_set("unit-bucket", "evil.example/"));
    assert_false(heft_object_region_set("unit-bucket", ""));
    assert_true(heft_object_region_of("unit-bucket", region));
    assert_string_equal(region, "eu-west-1");
}

/* ---- other stores ---- */

static void azure_settings_are_read_whole_or_refused(void **state)
{
    struct heft_object_stores stores;
    struct heft_object_secrets secrets;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    clear_environment();
    (void)setenv("AZURE_STORAGE_CONNECTION_STRING",
                 "DefaultEndpointsProtocol=http;AccountName=acct1;AccountKey=aGlkZGVuaGlkZGVuaGlkZGVu;"
                 "BlobEndpoint=http://127.0.0.1:10000/acct1/;",
                 1);
    assert_int_equal(make_store(HEFT_OBJECT_AZURE, &stores, &secrets, NULL), 0);
    assert_string_equal(stores.of[HEFT_OBJECT_AZURE]->account, "acct1");
    assert_string_equal(stores.of[HEFT_OBJECT_AZURE]->endpoint, "http://127.0.0.1:10000/acct1");
    assert_string_equal(secrets.secret_key, "aGlkZGVuaGlkZGVuaGlkZGVu");
    free_store(&stores, &secrets);
    clear_environment();
    (void)setenv("AZURE_STORAGE_ACCOUNT", "acct2", 1);
    (void)setenv("AZURE_STORAGE_KEY", "no-base64!", 1);
    assert_int_equal(make_store(HEFT_OBJECT_AZURE, &stores, &secrets, &error), HEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "AZURE_STORAGE_KEY"));
    assert_null(strstr(error.text, "no-base64"));
    (void)setenv("AZURE_STORAGE_ACCOUNT", "Acct/2", 1);
    assert_int_equal(make_store(HEFT_OBJECT_AZURE, &stores, &secrets, &error), HEFT_ERR_INVALID);
    (void)unsetenv("AZURE_STORAGE_ACCOUNT");
    (void)setenv("AZURE_STORAGE_KEY", "aGlkZGVuaGlkZGVuaGlkZGVu", 1);
    assert_int_equal(make_store(HEFT_OBJECT_AZURE, &stores, &secrets, &error), HEFT_ERR_INVALID);
    assert_non_null(strstr(error.text, "AZURE_STORAGE_ACCOUNT"));
    clear_environment();
}

static void a_hub_token_goes_over_no_plain_connection(void **state)
{
    struct heft_object_stores stores;
    struct heft_object_secrets secrets;
    struct heft_error error = HEFT_ERROR_INIT;

    (void)state;
    clear_environment();
    (void)setenv("HF_TOKEN", "hidden", 1);
    assert_int_equal(make_store(HEFT_OBJECT_HUB, &stores, &secrets, NULL), 0);
    assert_string_equal(stores.of[HEFT_OBJECT_HUB]->endpoint, "https://huggingface.co");
    assert_string_equal(secrets.token, "hidden");
    free_store(&stores, &secrets);
    (void)setenv("HF_ENDPOINT", "http://mirror.example/hf", 1);
    assert_int_equal(make_store(HEFT_OBJECT_HUB, &stores, &secrets, &error), HEFT_ERR_DENIED);
    assert_null(strstr(error.text, "hidden"));
    (void)setenv("HF_ENDPOINT", "http://127.0.0.1:9/hf", 1);
    assert_int_equal(make_store(HEFT_OBJECT_HUB, &stores, &secrets, NULL), 0);
    free_store(&stores, &secrets);
    clear_environment();
}

static void urls_are_taken_apart_by_service(void **state)
{
    static const struct {
        const char *url, *bucket, *key, *origin, *shown;
    } good[] = {
        {"gs://b/a/b c", "b", "a/b c", NULL, "gs://b/a/b c"},
        {"https://acct.blob.core.windows.net/box/a%20b/c?sv=1&sig=hidden", "box", "a b/c",
         "https://acct.blob.core.windows.net", "https://acct.blob.core.windows.net/box/a%20b/c"},
        {"hf://org/name@0123/x/y", "org/name", "x/y", "0123", "hf://org/name@0123/x/y"},
    };
    static const char *const bad[] = {
        "gs:///x",       "s3://b*d/x", "https://acct.blob.core.windows.net/B_d/x",
        "hf://org/name", "az://box/x", "ftp://x/y"};
    struct heft_object_stores stores = {0};
    struct heft_object *object;
    size_t index;

    (void)state;
    clear_environment();
    (void)setenv("HEFT_OBJECT_ANONYMOUS", "1", 1);
    for (index = HEFT_OBJECT_S3; index < HEFT_OBJECT_SERVICES; index++)
        assert_int_equal(heft_object_stores_use(&stores, (enum heft_object_service)index, NULL), 0);
    for (index = 0; index < sizeof(good) / sizeof(good[0]); index++) {
        assert_int_equal(heft_object_make(good[index].url, &stores, &object, NULL), 0);
        assert_string_equal(object->bucket, good[index].bucket);
        assert_string_equal(object->key, good[index].key);
        assert_string_equal(object->shown, good[index].shown);
        if (good[index].origin)
            assert_string_equal(object->origin, good[index].origin);
        heft_object_free(object);
    }
    for (index = 0; index < sizeof(bad) / sizeof(bad[0]); index++)
        assert_int_not_equal(heft_object_make(bad[index], &stores, &object, NULL), 0);
    heft_object_stores_free(&stores);
    (void)unsetenv("HEFT_OBJECT_ANONYMOUS");
}

static void texts_of_stores_are_read_exactly(void **state)
{
    uint8_t bytes[8];
    char *text = heft_object_base64("\xfb\xff\xfe\x01", 4, 0);

    (void)state;
    assert_string_equal(text, "+//+AQ==");
    assert_int_equal(heft_object_from_base64(text, bytes, sizeof(bytes)), 4);
    assert_memory_equal(bytes, "\xfb\xff\xfe\x01", 4);
    assert_int_equal(heft_object_from_base64(text, bytes, 3), -1);
    free(text);
    text = heft_object_base64("\xfb\xff\xfe\x01", 4, 1);
    assert_string_equal(text, "-__-AQ");
    free(text);
    assert_int_equal(heft_object_from_base64("abc", bytes, sizeof(bytes)), -1);
    assert_int_equal(heft_object_from_base64("", bytes, sizeof(bytes)), -1);
    assert_true(heft_object_time_ms("2026-11-30T12:00:00Z") == 1796040000000);
    assert_true(heft_object_time_ms("2026-11-30T12:00:00.5Z") == 1796040000000);
    assert_true(heft_object_time_ms("yesterday") == 0);
    text = heft_object_decode("a%20b%2Fc%zz%4", 14);
    assert_string_equal(text, "a b/c%zz%4");
    free(text);
    assert_null(heft_object_decode("a%00b", 5));
    assert_true(heft_object_same_host("https://h/a", "https://u:p@H/b?c"));
    assert_false(heft_object_same_host("https://h/a", "http://h/a"));
    assert_false(heft_object_same_host("https://h/a", "https://h:8/a"));
    assert_false(heft_object_same_host("https://h/a", "https://h.evil/a"));
}

static void an_azure_page_is_read(void **state)
{
    static const char xml[] =
        "<?xml version=\"1.0\"?><EnumerationResults ServiceEndpoint=\"x\" "
        "ContainerName=\"c\"><Prefix>m/</Prefix>"
        "<Blobs><Blob><Name>m/a&amp;b</Name><Properties><Etag>0x8D</Etag><Content-Length>7</Content-Length>"
        "</Properties></Blob><BlobPrefix><Name>m/deep/</Name></BlobPrefix></Blobs>%s</EnumerationResults>";
    char text[1024];
    struct heft_s3_page page;

    (void)state;
    (void)snprintf(text, sizeof(text), xml, "<NextMarker/>");
    assert_int_equal(heft_azure_page_parse(text, strlen(text), &page, NULL), 0);
    assert_int_equal(page.entry_count, 1);
    assert_string_equal(page.entries[0].key, "m/a&b");
    assert_true(page.entries[0].size_bytes == 7);
    assert_false(page.truncated);
    heft_s3_page_free(&page);
    (void)snprintf(text, sizeof(text), xml, "<NextMarker>next</NextMarker>");
    assert_int_equal(heft_azure_page_parse(text, strlen(text), &page, NULL), 0);
    assert_string_equal(page.next_token, "next");
    heft_s3_page_free(&page);
    assert_int_equal(heft_s3_page_parse(text, strlen(text), &page, NULL), HEFT_ERR_PROTOCOL);
    assert_int_equal(heft_azure_page_parse(text, strlen(text) - 3, &page, NULL), HEFT_ERR_PROTOCOL);
    assert_int_equal(heft_azure_page_parse("<ListBucketResult/>", 19, &page, NULL), HEFT_ERR_PROTOCOL);
}

static void the_hubs_files_are_read(void **state)
{
    static const char commit[] = "0123456789abcdef0123456789abcdef01234567";
    static const char *const wrong[] = {"",
                                        "[]",
                                        "{\"sha\":\"main\",\"siblings\":[]}",
                                        "{\"sha\":\"%s\",\"siblings\":[{}]}",
                                        "{\"sha\":\"%s\"}",
                                        "{\"sha\":\"%s\",\"siblings\":[{\"rfilename\":\"a\",\"size\":-1}]}"};
    char text[1024], found[64];
    struct heft_s3_page page;
    size_t index;

    (void)state;
    (void)snprintf(text, sizeof(text),
                   "{\"sha\":\"%s\",\"siblings\":[{\"rfilename\":\"b.json\",\"size\":3,\"blobId\":\"%s\"},"
                   "{\"rfilename\":\"m.safetensors\",\"lfs\":{\"size\":9,\"sha256\":\"%.40s%.24s\"}},"
                   "{\"rfilename\":\"plain\"}]}",
                   commit, commit, commit, commit);
    assert_int_equal(heft_hub_files_parse(text, strlen(text), found, &page, NULL), 0);
    assert_string_equal(found, commit);
    assert_int_equal(page.entry_count, 3);
    assert_true(page.entries[0].size_bytes == 3 && page.entries[1].size_bytes == 9);
    assert_int_equal(strlen(page.entries[1].etag), 64);
    assert_string_equal(page.entries[2].etag, "");
    heft_s3_page_free(&page);
    for (index = 0; index < sizeof(wrong) / sizeof(wrong[0]); index++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void)snprintf(text, sizeof(text), wrong[index], commit);
#pragma GCC diagnostic pop
        assert_int_equal(heft_hub_files_parse(text, strlen(text), found, &page, NULL), HEFT_ERR_PROTOCOL);
    }
}

static void a_role_is_read_whole_or_refused(void **state)
{
    static const char xml[] =
        "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
        "<AccessKeyId>AK</AccessKeyId><SecretAccessKey>SK</SecretAccessKey>"
        "<SessionToken>ST</SessionToken><Expiration>2026-11-30T12:00:00Z</Expiration>"
        "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>";
    static const char fault[] = "<ErrorResponse><Error><Type>Sender</Type><Code>ExpiredTokenException</Code>"
                                "<Message>too old</Message></Error><RequestId>r</RequestId></ErrorResponse>";
    struct heft_sts_answer answer;
    struct heft_s3_fault found;

    (void)state;
    assert_int_equal(heft_sts_parse(xml, sizeof(xml) - 1, &answer, NULL), 0);
    assert_string_equal(answer.access_key, "AK");
    assert_string_equal(answer.session_token, "ST");
    assert_string_equal(answer.expiration, "2026-11-30T12:00:00Z");
    assert_int_equal(heft_sts_parse(xml, sizeof(xml) - 5, &answer, NULL), HEFT_ERR_PROTOCOL);
    assert_int_equal(heft_sts_parse(fault, sizeof(fault) - 1, &answer, NULL), HEFT_ERR_PROTOCOL);
    assert_true(heft_s3_fault_parse(fault, sizeof(fault) - 1, &found));
    assert_string_equal(found.code, "ExpiredTokenException");
}

/* ---- pauses ---- */

static void pauses_double_jitter_and_obey_retry_after(void **state)
{
    struct heft_object_limits limits = {.backoff_ms = 200, .max_backoff_ms = 10000, .max_after_s = 60};
    uint64_t ms = UINT64_C(1000000);
    int index;

    (void)state;
    for (index = 0; index < 200; index++) {
        uint64_t first = heft_object_pause_ns(&limits, 1, 0), third = heft_object_pause_ns(&limits, 3, 0);
        uint64_t late = heft_object_pause_ns(&limits, 60, 0), told = heft_object_pause_ns(&limits, 1, 7);
        uint64_t much = heft_object_pause_ns(&limits, 1, 86400);

        assert_in_range(first, 100 * ms, 200 * ms);
        assert_in_range(third, 400 * ms, 800 * ms);
        assert_in_range(late, 5000 * ms, 10000 * ms);
        assert_in_range(told, 7000 * ms, 7875 * ms);
        assert_in_range(much, 60000 * ms, 67500 * ms);
    }
}

/* ---- XML ---- */

static const char page_xml[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
    "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name><Prefix>m/</Prefix>"
    "<IsTruncated>true</IsTruncated><NextContinuationToken>a+b/c=</NextContinuationToken>"
    "<Contents><Key>m/a &amp; b \xc3\xa9.safetensors</Key><ETag>&quot;abc&quot;</ETag><Size>12</Size>"
    "<Owner><ID>x</ID></Owner></Contents><Contents><Key>m/c</Key><Size>18446744073709551615</Size></Contents>"
    "<CommonPrefixes><Prefix>m/sub/</Prefix></CommonPrefixes></ListBucketResult>";

static void a_page_is_read(void **state)
{
    struct heft_s3_page page;

    (void)state;
    assert_int_equal(heft_s3_page_parse(page_xml, sizeof(page_xml) - 1, &page, NULL), 0);
    assert_int_equal(page.entry_count, 2);
    assert_string_equal(page.entries[0].key, "m/a & b \xc3\xa9.safetensors");
    assert_string_equal(page.entries[0].etag, "\"abc\"");
    assert_int_equal(page.entries[0].size_bytes, 12);
    assert_true(page.entries[1].size_bytes == UINT64_MAX);
    assert_true(page.truncated);
    assert_string_equal(page.next_token, "a+b/c=");
    heft_s3_page_free(&page);
}

static void what_is_no_page_is_refused(void **state)
{
    static const char *const wrong[] = {
        "",
        "<ListBucketResult>",
        "<html><body>hello</body></html>",
        "<ListBucketResult></ListBucketResult>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><IsTruncated>maybe</IsTruncated></ListBucketResult>",
        "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>a</Key></Contents></"
        "ListBucketResult>",
        "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Size>1</Size></Contents></"
        "ListBucketResult>",
        "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>a</Key><Size>-1</Size></Contents>"
        "</ListBucketResult>",
        "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>a</Key><Key>b</Key><Size>1</Size>"
        "</Contents></ListBucketResult>",
        "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key></Key><Size>1</Size></Contents>"
        "</ListBucketResult>",
        "<!DOCTYPE x [<!ENTITY a "
        "\"b\">]><ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>",
        "<a><a><a><a><a><a><a><a><a></a></a></a></a></a></a></a></a></a>"};
    size_t index;

    (void)state;
    for (index = 0; index < sizeof(wrong) / sizeof(wrong[0]); index++) {
        struct heft_s3_page page;
        struct heft_error error = HEFT_ERROR_INIT;

        assert_int_equal(heft_s3_page_parse(wrong[index], strlen(wrong[index]), &page, &error),
                         HEFT_ERR_PROTOCOL);
        assert_non_null(strstr(error.text, "list"));
    }
}

static void every_prefix_of_a_page_is_refused(void **state)
{
    size_t size;

    (void)state;
    for (size = 0; size < sizeof(page_xml) - 1; size++) {
        struct heft_s3_page page;

        assert_int_equal(heft_s3_page_parse(page_xml, size, &page, NULL), HEFT_ERR_PROTOCOL);
    }
}

static void a_fault_is_read_and_other_things_are_none(void **state)
{
    static const char xml[] = "<Error><Code>SlowDown</Code><Message>Please\nreduce</Message>"
                              "<RequestId>R1</RequestId><Region>eu-west-3</Region></Error>";
    struct heft_s3_fault fault;

    (void)state;
    assert_true(heft_s3_fault_parse(xml, sizeof(xml) - 1, &fault));
    assert_string_equal(fault.code, "SlowDown");
    assert_string_equal(fault.message, "Please reduce");
    assert_string_equal(fault.request_id, "R1");
    assert_string_equal(fault.region, "eu-west-3");
    assert_false(heft_s3_fault_parse("not found", 9, &fault));
    assert_string_equal(fault.code, "");
    assert_false(heft_s3_fault_parse(page_xml, sizeof(page_xml) - 1, &fault));
}

/* ---- parts ---- */

#define OBJECT_BYTES 4096u
#define MAX_MOVES 24u

static uint8_t byte_of(uint64_t region, uint64_t offset)
{
    return (uint8_t)(offset * 7 + offset / 251 + region * 13);
}

/* One random operation: every wanted byte arrives once, at its place, and no other place is touched. */
static void check_operation(unsigned seed)
{
    static uint8_t memory[MAX_MOVES * 2048], expected[sizeof(memory)];
    struct heft_transport_region host = {
        .space = HEFT_SPACE_HOST, .address = memory, .length_bytes = sizeof(memory)};
    struct heft_transport_region objects[2] = {{.id = 1, .length_bytes = OBJECT_BYTES},
                                               {.id = 2, .length_bytes = OBJECT_BYTES}};
    struct heft_move moves[MAX_MOVES];
    struct heft_object_parts parts = {0};
    struct heft_object_part part;
    size_t count, index, at = 0;
    uint64_t wanted = 0, landed = 0, part_bytes, last_end = 0;
    unsigned random = seed;

    memset(memory, 0, sizeof(memory));
    memset(expected, 0, sizeof(expected));
    count = (size_t)(rand_r(&random) % (int)MAX_MOVES);
    for (index = 0; index < count; index++) {
        struct heft_move *move = &moves[index];
        uint64_t element, gap, room = 2048;

        *move = (struct heft_move){.local = &host, .remote = &objects[rand_r(&random) % 2]};
        move->length_bytes = (uint64_t)(rand_r(&random) % 200);
        move->count = (uint64_t)(rand_r(&random) % 6);
        gap = (uint64_t)(rand_r(&random) % 3 ? 0 : rand_r(&random) % 50);
        move->remote_stride_bytes = move->length_bytes + gap;
        move->local_stride_bytes =
            move->length_bytes + (uint64_t)(rand_r(&random) % 2 ? 0 : rand_r(&random) % 20);
        move->remote_offset_bytes = (uint64_t)(rand_r(&random) % 2500);
        move->local_offset_bytes = at;
        at += room;
        for (element = 0; element < move->count; element++) {
            uint64_t byte;

            for (byte = 0; byte < move->length_bytes; byte++)
                expected[move->local_offset_bytes + element * move->local_stride_bytes + byte] = byte_of(
                    move->remote->id, move->remote_offset_bytes + element * move->remote_stride_bytes + byte);
        }
        wanted += move->length_bytes * move->count;
    }
    part_bytes = 1 + (uint64_t)(rand_r(&random) % 700);
    assert_int_equal(heft_object_parts_prepare(&parts, moves, count), 0);
    while (heft_object_parts_cut(&parts, part_bytes, &part)) {
        uint64_t position;

        assert_true(part.end > part.begin && part.end <= OBJECT_BYTES);
        assert_true(part.end - part.begin < part_bytes + part_bytes / 2 + 1);
        assert_true(heft_object_part_move(&part) < count);
        for (position = part.begin; position < part.end;) {
            uint8_t data[64];
            uint64_t size = 1 + (uint64_t)(rand_r(&random) % 64), byte;

            if (size > part.end - position)
                size = part.end - position;
            for (byte = 0; byte < size; byte++)
                data[byte] = byte_of(part.region->id, position + byte);
            (void)heft_object_part_take(&part, data, size);
            position += size;
            assert_int_equal(part.position, position);
        }
        assert_int_equal(part.landed_bytes, part.payload_bytes);
        landed += part.landed_bytes;
        last_end = part.end;
    }
    (void)last_end;
    assert_int_equal(landed, wanted);
    assert_false(heft_object_parts_left(&parts));
    assert_memory_equal(memory, expected, sizeof(memory));
    heft_object_parts_free(&parts);
}

static void random_operations_are_tiled_exactly(void **state)
{
    unsigned seed;

    (void)state;
    for (seed = 1; seed <= 3000; seed++)
        check_operation(seed);
}

static void a_large_gap_begins_a_new_part(void **state)
{
    static uint8_t memory[64];
    struct heft_transport_region host = {.space = HEFT_SPACE_HOST, .address = memory};
    struct heft_transport_region object = {.id = 1};
    struct heft_move moves[] = {
        {.local = &host, .remote = &object, .length_bytes = 8, .count = 1},
        {.local = &host,
         .remote = &object,
         .remote_offset_bytes = 8 + HEFT_OBJECT_GAP_BYTES,
         .local_offset_bytes = 8,
         .length_bytes = 8,
         .count = 1},
        {.local = &host,
         .remote = &object,
         .remote_offset_bytes = 17 + 2 * HEFT_OBJECT_GAP_BYTES,
         .local_offset_bytes = 16,
         .length_bytes = 8,
         .count = 1},
    };
    struct heft_object_parts parts = {0};
    struct heft_object_part part;

    (void)state;
    assert_int_equal(heft_object_parts_prepare(&parts, moves, 3), 0);
    assert_int_equal(heft_object_parts_cut(&parts, HEFT_OBJECT_PART_BYTES, &part), 1);
    assert_int_equal(part.end, 16 + HEFT_OBJECT_GAP_BYTES);
    assert_int_equal(part.payload_bytes, 16);
    assert_int_equal(heft_object_parts_cut(&parts, HEFT_OBJECT_PART_BYTES, &part), 1);
    assert_int_equal(part.begin, 17 + 2 * HEFT_OBJECT_GAP_BYTES);
    assert_int_equal(heft_object_parts_cut(&parts, HEFT_OBJECT_PART_BYTES, &part), 0);
    heft_object_parts_free(&parts);
}

static void a_gigabyte_is_cut_into_parts_of_8_to_12_mebibytes(void **state)
{
    struct heft_transport_region host = {.space = HEFT_SPACE_HOST}, object = {.id = 1};
    struct heft_move move = {.local = &host,
                             .remote = &object,
                             .length_bytes = ((uint64_t)1 << 30) + ((uint64_t)3 << 20),
                             .count = 1};
    struct heft_object_parts parts = {0};
    struct heft_object_part part;
    uint64_t count = 0, at = 0;

    (void)state;
    assert_int_equal(heft_object_parts_prepare(&parts, &move, 1), 0);
    while (heft_object_parts_cut(&parts, HEFT_OBJECT_PART_BYTES, &part)) {
        assert_int_equal(part.begin, at);
        assert_in_range(part.end - part.begin, (uint64_t)8 << 20, (uint64_t)12 << 20);
        at = part.end;
        count++;
    }
    assert_int_equal(at, move.length_bytes);
    assert_int_equal(count, 128);
    heft_object_parts_free(&parts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shown_url_holds_no_secret),
        cmocka_unit_test(a_name_joins_before_the_query_and_is_encoded),
        cmocka_unit_test(only_loopback_and_tls_are_private),
        cmocka_unit_test(signatures_are_those_of_the_published_examples),
        cmocka_unit_test(a_signature_that_does_not_fit_is_refused),
        cmocka_unit_test(without_anything_requests_go_unsigned_to_us_east_1),
        cmocka_unit_test(the_environment_goes_before_the_profile),
        cmocka_unit_test(half_a_key_a_lost_profile_and_a_plain_token_are_refused),
        cmocka_unit_test(limits_that_are_no_numbers_are_refused),
        cmocka_unit_test(a_learned_region_must_be_a_region),
        cmocka_unit_test(azure_settings_are_read_whole_or_refused),
        cmocka_unit_test(a_hub_token_goes_over_no_plain_connection),
        cmocka_unit_test(urls_are_taken_apart_by_service),
        cmocka_unit_test(texts_of_stores_are_read_exactly),
        cmocka_unit_test(an_azure_page_is_read),
        cmocka_unit_test(the_hubs_files_are_read),
        cmocka_unit_test(a_role_is_read_whole_or_refused),
        cmocka_unit_test(pauses_double_jitter_and_obey_retry_after),
        cmocka_unit_test(a_page_is_read),
        cmocka_unit_test(what_is_no_page_is_refused),
        cmocka_unit_test(every_prefix_of_a_page_is_refused),
        cmocka_unit_test(a_fault_is_read_and_other_things_are_none),
        cmocka_unit_test(random_operations_are_tiled_exactly),
        cmocka_unit_test(a_large_gap_begins_a_new_part),
        cmocka_unit_test(a_gigabyte_is_cut_into_parts_of_8_to_12_mebibytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
