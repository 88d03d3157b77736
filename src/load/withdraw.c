/* SPDX-License-Identifier: Apache-2.0 */
#include "load/withdraw.h"
#include "agent/peer.h"
#include "base/clock.h"
#include "base/log.h"

#include <unistd.h>

#define WAIT_MS 3000u /* for readers to stop by themselves */

/* Tries until end_ns; the number of regions that somebody still reads. */
static uint32_t deregister_until(struct heft_region **regions, uint32_t count, uint64_t end_ns)
{
    uint32_t index, busy = 0;

    for (index = 0; index < count; index++) {
        int rc = HEFT_ERR_BUSY;

        if (!regions[index])
            continue;
        /* Each try may wait for readers on this host: once the time is over, one region that is read is
         * enough. */
        while ((busy == 0 || heft_now_ns() < end_ns) &&
               (rc = heft_region_deregister(regions[index], NULL)) == HEFT_ERR_BUSY && heft_now_ns() < end_ns)
            (void)usleep(1000);
        if (rc == HEFT_OK)
            regions[index] = NULL;
        else
            busy++;
    }
    return busy;
}

int heft_withdraw_regions(struct heft_agent *agent, const char *name, struct heft_region **regions,
                          uint32_t count)
{
    if (deregister_until(regions, count, heft_after_ms(heft_now_ns(), WAIT_MS)) == 0)
        return HEFT_OK;
    heft_log(HEFT_LOG_WARN, "replica %s is still read after %u ms: its readers are dropped", name, WAIT_MS);
    heft_agent_drop_readers(agent);
    if (deregister_until(regions, count, heft_after_ms(heft_now_ns(), WAIT_MS)) == 0)
        return HEFT_OK;
    heft_log(HEFT_LOG_ERROR, "replica %s: a region is still in use; its memory is not given back", name);
    return HEFT_ERR_BUSY;
}
