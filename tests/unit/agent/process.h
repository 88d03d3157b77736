/* SPDX-License-Identifier: Apache-2.0 */
/* The other side as another process: this program again, told by its first argument what to be. */
#ifndef HEFT_TEST_PROCESS_H
#define HEFT_TEST_PROCESS_H

#include <heft/agent.h>
#include <sys/types.h>

/* What a serving process tells about itself. */
struct served {
    char name[64];
    char addresses[1024];
    struct heft_generation generation;
    struct heft_token token;
    uint64_t regions[4];
};

struct other {
    pid_t pid;
    int in, out; /* its standard input and output */
};

void other_start(struct other *other, const char *mode, const char *argument);
/* Sends the signal (0: closes its input and waits for it to leave by itself). */
void other_end(struct other *other, int signal_number);
void other_read(int fd, void *data, size_t size);
void other_write(int fd, const void *data, size_t size);
/* One command byte to the other side. */
void other_say(const struct other *other, char command);
void served_fill(struct served *served, struct heft_agent *agent);
/* How to connect to it; points into `served`. */
struct heft_peer_options served_options(const struct served *served);
struct heft_peer *served_connect(struct heft_agent *agent, const struct served *served);

#endif
