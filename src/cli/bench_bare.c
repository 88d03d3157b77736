/* SPDX-License-Identifier: Apache-2.0 */
/* The same pieces, moved by a bare loop in one thread: what a row is held against. */
#include "base/clock.h"
#include "cli/bench.h"

#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define CALL_ITEMS 1024

uint64_t bench_stride(const struct bench_case *row)
{
    return row->pattern == BENCH_CONTIGUOUS ? row->size_bytes : 2 * row->size_bytes;
}

uint64_t bench_span(const struct bench_case *row)
{
    uint64_t bytes;

    if (__builtin_mul_overflow(bench_stride(row), row->batch, &bytes) || bytes > UINT64_MAX / 2)
        return UINT64_MAX;
    return (bytes + 4095) & ~UINT64_C(4095);
}

static uint64_t word_at(uint64_t index, uint64_t salt)
{
    return (index + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ salt;
}

void bench_fill(uint8_t *at, uint64_t offset, uint64_t size, uint64_t salt)
{
    uint64_t index = 0;

    for (; index < size && ((offset + index) & 7); index++)
        at[index] = (uint8_t)(word_at((offset + index) / 8, salt) >> (8 * ((offset + index) & 7)));
    for (; index + 8 <= size; index += 8) {
        uint64_t word = word_at((offset + index) / 8, salt);

        memcpy(at + index, &word, 8);
    }
    for (; index < size; index++)
        at[index] = (uint8_t)(word_at((offset + index) / 8, salt) >> (8 * ((offset + index) & 7)));
}

uint64_t bench_differs(const uint8_t *at, uint64_t offset, uint64_t size, uint64_t salt)
{
    uint64_t index, piece;
    uint8_t right[4096];

    for (index = 0; index < size; index += piece) {
        piece = size - index < sizeof(right) ? size - index : sizeof(right);
        bench_fill(right, offset + index, piece, salt);
        if (memcmp(at + index, right, piece) != 0) {
            uint64_t same = 0;

            while (right[same] == at[index + same])
                same++;
            return index + same;
        }
    }
    return size;
}

static uint64_t place(const struct bench_case *row, const uint32_t *order, uint64_t index)
{
    return (order ? order[index] : index) * bench_stride(row);
}

/* The bare loop knows as much as heft: neighbours move as one piece. */
static uint64_t piece_bytes(const struct bench_case *row)
{
    return row->pattern == BENCH_CONTIGUOUS ? row->size_bytes * row->batch : row->size_bytes;
}

static uint64_t pieces(const struct bench_case *row)
{
    return row->pattern == BENCH_CONTIGUOUS ? 1 : row->batch;
}

static int copy_once(const struct bench_case *row, uint8_t *near, uint8_t *far, const uint32_t *near_order,
                     const uint32_t *far_order)
{
    uint64_t index, bytes = piece_bytes(row);

    for (index = 0; index < pieces(row); index++) {
        uint8_t *here = near + place(row, near_order, index), *there = far + place(row, far_order, index);

        if (row->op == HEFT_OP_READ)
            memcpy(here, there, bytes);
        else
            memcpy(there, here, bytes);
    }
    return 1;
}

static int attach_once(const struct bench_case *row, uint8_t *near, uint64_t far_pid, uint64_t far_address,
                       const uint32_t *near_order, const uint32_t *far_order)
{
    struct iovec here[CALL_ITEMS], there[CALL_ITEMS];
    uint64_t index = 0, bytes = piece_bytes(row), most = (uint64_t)256 << 20;

    while (index < pieces(row)) {
        uint64_t count = 0, at = 0;
        ssize_t moved = 0;

        for (; count < CALL_ITEMS && index + count < pieces(row); count++) {
            here[count] = (struct iovec){near + place(row, near_order, index + count), bytes};
            there[count] = (struct iovec){
                (void *)(uintptr_t)(far_address + place(row, far_order, index + count)), bytes};
            if ((count + 1) * bytes >= most && ++count)
                break;
        }
        if (bytes > most) { /* one call moves at most 2 GiB less a page */
            for (at = 0; at < bytes; at += (uint64_t)moved) {
                struct iovec a = {(uint8_t *)here[0].iov_base + at, bytes - at < most ? bytes - at : most};
                struct iovec b = {(uint8_t *)there[0].iov_base + at, a.iov_len};

                moved = row->op == HEFT_OP_READ ? process_vm_readv((pid_t)far_pid, &a, 1, &b, 1, 0)
                                                : process_vm_writev((pid_t)far_pid, &a, 1, &b, 1, 0);
                if (moved <= 0)
                    return 0;
            }
            index++;
            continue;
        }
        moved = row->op == HEFT_OP_READ ? process_vm_readv((pid_t)far_pid, here, count, there, count, 0)
                                        : process_vm_writev((pid_t)far_pid, here, count, there, count, 0);
        if (moved != (ssize_t)(count * bytes))
            return 0;
        index += count;
    }
    return 1;
}

static int file_once(const struct bench_case *row, uint8_t *near, int fd, const uint32_t *near_order,
                     const uint32_t *far_order)
{
    uint64_t index, bytes = piece_bytes(row);

    for (index = 0; index < pieces(row); index++) {
        uint8_t *here = near + place(row, near_order, index);
        off_t there = (off_t)place(row, far_order, index);
        uint64_t at = 0;

        while (at < bytes) {
            ssize_t moved = row->op == HEFT_OP_READ ? pread(fd, here + at, bytes - at, there + (off_t)at)
                                                    : pwrite(fd, here + at, bytes - at, there + (off_t)at);
            if (moved <= 0)
                return 0;
            at += (uint64_t)moved;
        }
    }
    return 1;
}

double bench_bare(const struct bench_case *row, uint8_t *near, uint8_t *far, uint64_t far_pid,
                  uint64_t far_address, int fd, const uint32_t *near_order, const uint32_t *far_order,
                  uint64_t time_ns)
{
    uint64_t start_ns = 0, took_ns = 0, passes = 0;

    /* One pass to warm up; then as heft is measured: whole passes until the time is over, with one look at
     * the clock each. */
    do {
        int went = fd >= 0 ? file_once(row, near, fd, near_order, far_order)
                   : far   ? copy_once(row, near, far, near_order, far_order)
                           : attach_once(row, near, far_pid, far_address, near_order, far_order);

        if (!went)
            return 0;
        if (!start_ns) {
            start_ns = heft_now_ns();
            continue;
        }
        passes++;
        took_ns = heft_now_ns() - start_ns;
    } while (passes == 0 || took_ns < time_ns);
    return (double)(row->size_bytes * row->batch) * (double)passes * 1e9 / (double)(took_ns ? took_ns : 1);
}
