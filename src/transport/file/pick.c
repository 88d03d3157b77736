/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which gaps of a piece are worth reading over: a column of a matrix is a short run of each of its rows.
 *
 * A disk that is kept busy takes so long for a read and so long for a byte. The quotient is the gap that
 * costs as much as another read: a few KiB on a local SSD, tens on a virtual disk, a megabyte where heads
 * move.
 */
#include "transport/file/file.h"
#include "base/clock.h"

/* Shorter windows tell more of the worker's turns than of the disk. */
#define GAUGE_WINDOW_NS (4 * HEFT_NS_PER_MS)
/* So many reads around gaps before the gauge knows. */
#define GAUGE_PICKED 512u
/* How far windows must differ in the size of their reads to tell what a read costs from what a byte does. */
#define GAUGE_MIN_SPREAD 0.01

void heft_file_gauge_begin(struct heft_file_gauge *gauge, uint64_t now_ns)
{
    gauge->since_ns = now_ns;
    gauge->window_reads = gauge->window_picked = gauge->window_bytes = 0;
}

static void solve(struct heft_file_gauge *gauge)
{
    double spread = gauge->reads_reads * gauge->bytes_bytes - gauge->reads_bytes * gauge->reads_bytes;
    double read_ns, byte_ns, gap;

    if (spread <= GAUGE_MIN_SPREAD * gauge->reads_reads * gauge->bytes_bytes)
        return;
    read_ns = (gauge->reads_ns * gauge->bytes_bytes - gauge->bytes_ns * gauge->reads_bytes) / spread;
    byte_ns = (gauge->bytes_ns * gauge->reads_reads - gauge->reads_ns * gauge->reads_bytes) / spread;
    if (read_ns <= 0 || byte_ns <= 0)
        return;
    gap = read_ns / byte_ns;
    gauge->gap_bytes = gap < 1 ? 1 : gap < (double)HEFT_FILE_GAP_BYTES ? (uint64_t)gap : HEFT_FILE_GAP_BYTES;
}

/* When no more gaps are gone around, what was found before stays. */
void heft_file_gauge_note(struct heft_file_gauge *gauge, uint64_t now_ns, uint64_t reads, uint64_t picked,
                          uint64_t bytes)
{
    double window_reads, window_bytes, ns = (double)(now_ns - gauge->since_ns);

    gauge->window_reads += reads;
    gauge->window_picked += picked;
    gauge->window_bytes += bytes;
    if (now_ns - gauge->since_ns < GAUGE_WINDOW_NS || gauge->window_reads == 0)
        return;
    window_reads = (double)gauge->window_reads;
    window_bytes = (double)gauge->window_bytes;
    gauge->reads_reads += window_reads * window_reads;
    gauge->reads_bytes += window_reads * window_bytes;
    gauge->bytes_bytes += window_bytes * window_bytes;
    gauge->reads_ns += window_reads * ns;
    gauge->bytes_ns += window_bytes * ns;
    gauge->picked += gauge->window_picked;
    if (gauge->picked >= GAUGE_PICKED && gauge->window_picked > gauge->window_reads / 2)
        solve(gauge);
    heft_file_gauge_begin(gauge, now_ns);
}

/* ---- a picked piece's reads ---- */

/* Blocks of the next run; 0: there is none. */
static int next_run(struct heft_file_extents *extents)
{
    uint64_t offset, bytes;
    uint8_t *address;

    if (!heft_file_walk_next(&extents->walk, &offset, &address, &bytes))
        return 0;
    extents->begin_bytes = offset & ~(extents->block_bytes - 1);
    extents->end_bytes = (offset + bytes + extents->block_bytes - 1) & ~(extents->block_bytes - 1);
    return 1;
}

void heft_file_extents_start(const struct heft_file_piece *piece, struct heft_file_extents *extents)
{
    heft_file_walk_start(piece, &extents->walk);
    extents->block_bytes = piece->direct ? piece->source->offset_align : HEFT_FILE_BLOCK_BYTES;
    extents->gap_bytes = piece->gap_bytes;
    extents->slot_bytes = 0;
    extents->more = next_run(extents);
}

int heft_file_extents_next(struct heft_file_extents *extents, struct heft_file_extent *extent_out)
{
    if (!extents->more)
        return 0;
    extent_out->begin_bytes = extents->begin_bytes;
    extent_out->slot_bytes = extents->slot_bytes;
    do
        extent_out->end_bytes = extents->end_bytes;
    while ((extents->more = next_run(extents)) != 0 &&
           extents->begin_bytes <= extent_out->end_bytes + extents->gap_bytes);
    extents->slot_bytes += extent_out->end_bytes - extent_out->begin_bytes;
    return 1;
}
