/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/handshake.h"

#include "base/clock.h"
#include "base/digest.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static struct heft_wire_text keep(char *place, struct heft_wire_text text)
{
    size_t size = text.size < HEFT_WIRE_NAME_MAX_BYTES ? text.size : HEFT_WIRE_NAME_MAX_BYTES;

    if (size)
        memcpy(place, text.data, size);
    place[size] = 0;
    return (struct heft_wire_text){place, size};
}

void heft_handshake_set_hello(struct heft_handshake *handshake, const struct heft_wire_hello *hello)
{
    handshake->hello = *hello;
    handshake->hello.name = keep(handshake->texts[0], hello->name);
    handshake->hello.expected_name = keep(handshake->texts[1], hello->expected_name);
    handshake->hello.transport = keep(handshake->texts[2], hello->transport);
}

void heft_handshake_set_challenge(struct heft_handshake *handshake,
                                  const struct heft_wire_challenge *challenge)
{
    handshake->challenge = *challenge;
    handshake->challenge.name = keep(handshake->server_name, challenge->name);
}

/* Fixed-size facts first, lengths of the texts among them, so that no two exchanges give the same bytes. */
void heft_handshake_proof(const struct heft_handshake *handshake, const uint8_t key[HEFT_TOKEN_BYTES],
                          enum heft_handshake_role role, uint64_t session, uint8_t out[HEFT_WIRE_PROOF_BYTES])
{
    static const char label[] = "heft handshake v1";
    const struct heft_wire_hello *hello = &handshake->hello;
    const struct heft_wire_challenge *challenge = &handshake->challenge;
    uint8_t facts[32];
    struct heft_part parts[] = {
        {label, sizeof(label)},
        {facts, sizeof(facts)},
        {hello->nonce, sizeof(hello->nonce)},
        {challenge->nonce, sizeof(challenge->nonce)},
        {hello->generation, sizeof(hello->generation)},
        {challenge->generation, sizeof(challenge->generation)},
        {hello->name.data, hello->name.size},
        {challenge->name.data, challenge->name.size},
        {hello->transport.data, hello->transport.size},
    };

    memset(facts, 0, sizeof(facts));
    facts[0] = (uint8_t)role;
    facts[1] = hello->purpose;
    heft_put_u16(facts + 2, hello->version_lowest);
    heft_put_u16(facts + 4, hello->version_highest);
    heft_put_u16(facts + 6, challenge->version);
    heft_put_u64(facts + 8, hello->session);
    heft_put_u64(facts + 16, session);
    facts[24] = (uint8_t)hello->name.size;
    facts[25] = (uint8_t)challenge->name.size;
    facts[26] = (uint8_t)hello->transport.size;
    heft_hmac_sha256(key, HEFT_TOKEN_BYTES, parts, sizeof(parts) / sizeof(parts[0]), out);
}

uint16_t heft_handshake_version(uint16_t lowest, uint16_t highest)
{
    if (lowest > HEFT_WIRE_VERSION_HIGHEST || highest < HEFT_WIRE_VERSION_LOWEST)
        return 0;
    return highest < HEFT_WIRE_VERSION_HIGHEST ? highest : HEFT_WIRE_VERSION_HIGHEST;
}

void heft_handshake_host(uint8_t out[HEFT_WIRE_HOST_BYTES])
{
    char boot_id[64] = "heft host:";
    uint8_t digest[HEFT_SHA256_BYTES];
    size_t used = strlen(boot_id);
    ssize_t got = -1;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

    memset(out, 0, HEFT_WIRE_HOST_BYTES);
    if (fd >= 0) {
        got = read(fd, boot_id + used, sizeof(boot_id) - used);
        (void)close(fd);
    }
    if (got < 36)
        return;
    heft_sha256(boot_id, used + 36, digest);
    memcpy(out, digest, HEFT_WIRE_HOST_BYTES);
}

/* Copies of one virtual machine share a boot id, but hardly a monotonic clock. */
int heft_handshake_same_host(const struct heft_wire_ready *ready, uint64_t elapsed_ns)
{
    static const uint8_t none[HEFT_WIRE_HOST_BYTES];
    uint8_t own[HEFT_WIRE_HOST_BYTES];
    uint64_t now_ns = heft_now_ns();

    heft_handshake_host(own);
    if (memcmp(own, none, sizeof(own)) == 0 || memcmp(own, ready->host, sizeof(own)) != 0)
        return 0;
    return ready->monotonic_ns <= now_ns && now_ns - ready->monotonic_ns <= elapsed_ns + HEFT_NS_PER_MS;
}
