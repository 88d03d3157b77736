/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/object/object.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int unreserved(unsigned char byte)
{
    return (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') ||
           byte == '-' || byte == '.' || byte == '_' || byte == '~';
}

void heft_object_encode(struct heft_buf *buf, const char *text, size_t size, int keep_slash)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t index;

    for (index = 0; index < size; index++) {
        unsigned char byte = (unsigned char)text[index];

        if (unreserved(byte) || (keep_slash && byte == '/')) {
            heft_buf_u8(buf, byte);
        } else {
            heft_buf_u8(buf, '%');
            heft_buf_u8(buf, (uint8_t)digits[byte >> 4]);
            heft_buf_u8(buf, (uint8_t)digits[byte & 15]);
        }
    }
}

static int digit(char byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

char *heft_object_decode(const char *text, size_t size)
{
    char *plain = malloc(size + 1);
    size_t at, fill = 0;

    if (!plain)
        return NULL;
    for (at = 0; at < size; at++) {
        int high = text[at] == '%' && at + 2 < size ? digit(text[at + 1]) : -1;
        int low = high >= 0 ? digit(text[at + 2]) : -1;

        plain[fill++] = low >= 0 ? (char)(high << 4 | low) : text[at];
        if (low >= 0)
            at += 2;
        if (plain[fill - 1] == 0) {
            free(plain);
            return NULL;
        }
    }
    plain[fill] = 0;
    return plain;
}

int heft_object_is_web(const char *url)
{
    return strncasecmp(url, "http://", 7) == 0 || strncasecmp(url, "https://", 8) == 0;
}

/* Where the authority of an http URL begins, its user info ends, and itself ends. */
static void authority(const char *url, size_t *begin_out, size_t *host_out, size_t *end_out)
{
    size_t begin = (size_t)(strstr(url, "://") + 3 - url);
    size_t end = begin + strcspn(url + begin, "/?#"), at;

    *begin_out = *host_out = begin;
    *end_out = end;
    for (at = begin; at < end; at++)
        if (url[at] == '@')
            *host_out = at + 1;
}

char *heft_object_shown(const char *url)
{
    size_t begin, host, end, rest;
    char *shown;

    if (!heft_object_is_web(url))
        return strdup(url);
    authority(url, &begin, &host, &end);
    rest = strcspn(url + host, "?#");
    shown = malloc(begin + rest + 1);
    if (!shown)
        return NULL;
    memcpy(shown, url, begin);
    memcpy(shown + begin, url + host, rest);
    shown[begin + rest] = 0;
    return shown;
}

char *heft_object_join(const char *url, const char *name)
{
    int http = heft_object_is_web(url);
    size_t path = http ? strcspn(url, "?#") : strlen(url), query = http ? strcspn(url + path, "#") : 0;
    struct heft_buf buf;

    heft_buf_init(&buf, SIZE_MAX);
    heft_buf_bytes(&buf, url, path);
    if (path == 0 || url[path - 1] != '/')
        heft_buf_u8(&buf, '/');
    if (http)
        heft_object_encode(&buf, name, strlen(name), 1);
    else
        heft_buf_bytes(&buf, name, strlen(name));
    heft_buf_bytes(&buf, url + path, query);
    heft_buf_u8(&buf, 0);
    if (buf.failed) {
        heft_buf_free(&buf);
        return NULL;
    }
    return (char *)buf.data;
}

int heft_object_is_private(const char *url)
{
    static const char *const own[] = {"localhost", "127.", "[::1]"};
    size_t begin, host, end, index;

    if (strncasecmp(url, "https://", 8) == 0)
        return 1;
    authority(url, &begin, &host, &end);
    for (index = 0; index < sizeof(own) / sizeof(own[0]); index++) {
        size_t size = strlen(own[index]), at;

        if (end - host < size || strncasecmp(url + host, own[index], size) != 0)
            continue;
        if (index != 1)
            return host + size == end || url[host + size] == ':';
        for (at = host + size; at < end && url[at] != ':'; at++)
            if (!strchr("0123456789.", url[at]))
                break;
        return at == end || url[at] == ':'; /* 127.evil.example is somebody else's */
    }
    return 0;
}

int heft_object_same_host(const char *one, const char *two)
{
    size_t begin, host, end, begin_two, host_two, end_two;

    authority(one, &begin, &host, &end);
    authority(two, &begin_two, &host_two, &end_two);
    return begin == begin_two && strncasecmp(one, two, begin) == 0 && end - host == end_two - host_two &&
           strncasecmp(one + host, two + host_two, end - host) == 0;
}
