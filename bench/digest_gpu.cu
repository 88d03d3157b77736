/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block digest on a GPU: proves the kernels of src/kernels/digest.cuh equal to xxHash's own header, then
 * measures them. Not part of the build (it needs nvcc):
 *
 *   gcc -O3 -march=native -c bench/bench_digest_reference.c -o reference.o
 *   nvcc -O3 -std=c++17 -arch=sm_90 bench/digest_gpu.cu reference.o -o digest_gpu
 *   ./digest_gpu check          every length 0..4097 at every start 0..31, and long ones at random
 *   ./digest_gpu quick          a small part of that, for compute-sanitizer
 *   ./digest_gpu measure [GIB]  rates, by default over 8 GiB; tab-separated, medians
 *
 * What is measured: device time of one launch by events, of random bytes, each kernel in turn in every round.
 * Buffers smaller than the whole are taken from another place each time, so that the second-level cache
 * does not hold them. `read` is a kernel that only reads (the floor), `copy` the driver's copy.
 */
#include "../src/kernels/digest.cuh"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

template <int WARPS>
__global__ void __launch_bounds__(THREADS_OF(WARPS)) digest_blocks(struct work work, uint64_t *digests)
{
    digest_all<WARPS>(work, digests);
}

extern "C" uint64_t reference_digest(const void *data, uint64_t size_bytes);

#define TRY(call) try_(call, #call)

static void try_(cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess)
        return;
    (void)fprintf(stderr, "digest_gpu: %s: %s\n", what, cudaGetErrorString(rc));
    exit(1);
}

static uint64_t random_state = 88172645463325252ull;

static uint64_t random_next()
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

/* ---- kernels, one row each ---- */

typedef void (*digest_kernel)(struct work work, uint64_t *digests);

struct variant {
    const char *name;
    digest_kernel kernel;
    uint32_t threads;
    uint32_t resident; /* thread blocks that fit on the GPU at once */
};

static std::vector<variant> variants()
{
    std::vector<variant> all = {
        {"1 warp", digest_blocks<1>, THREADS_OF(1), 0},
        {"2 warps", digest_blocks<2>, THREADS_OF(2), 0},
        {"4 warps", digest_blocks<4>, THREADS_OF(4), 0},
        {"8 warps", digest_blocks<8>, THREADS_OF(8), 0},
    };
    int device = 0, processors = 0, per_processor = 0;

    TRY(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    for (variant &one : all) {
        cudaFuncAttributes attributes;

        TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, one.kernel, (int)one.threads, 0));
        TRY(cudaFuncGetAttributes(&attributes, (const void *)one.kernel));
        one.resident = (uint32_t)(processors * per_processor);
        (void)printf("# %s: %d registers, %zu bytes local, %d thread blocks of %u threads a processor\n",
                     one.name, attributes.numRegs, attributes.localSizeBytes, per_processor, one.threads);
    }
    return all;
}

static void launch(const variant &one, const struct work &work, uint64_t *digests)
{
    uint32_t grid = (uint32_t)(work.count < one.resident ? work.count : one.resident);

    one.kernel<<<grid, one.threads>>>(work, digests);
    TRY(cudaGetLastError());
}

/* ---- proof ---- */

static uint64_t check_places(const std::vector<variant> &all, const uint8_t *bytes,
                             const uint8_t *device_bytes, const std::vector<struct place> &host_places,
                             const char *what)
{
    std::vector<struct place> places(host_places);
    std::vector<uint64_t> expected, got(places.size());
    struct place *device_places;
    uint64_t *digests, wrong = 0;

    for (struct place &place : places) {
        expected.push_back(reference_digest(place.data, place.size_bytes));
        place.data = device_bytes + (place.data - bytes);
    }
    TRY(cudaMalloc(&device_places, places.size() * sizeof(struct place)));
    TRY(cudaMalloc(&digests, places.size() * 8));
    TRY(cudaMemcpy(device_places, places.data(), places.size() * sizeof(struct place),
                   cudaMemcpyHostToDevice));
    for (const variant &one : all) {
        uint64_t before = wrong;

        TRY(cudaMemset(digests, 0x5a, places.size() * 8));
        launch(one, {device_places, NULL, 0, 0, places.size()}, digests);
        TRY(cudaDeviceSynchronize());
        TRY(cudaMemcpy(got.data(), digests, places.size() * 8, cudaMemcpyDeviceToHost));
        for (size_t index = 0; index < places.size(); index++) {
            if (got[index] == expected[index])
                continue;
            if (wrong++ - before < 5)
                (void)printf("%s: %s: start %llu, %llu bytes: %016llx, expected %016llx\n", one.name, what,
                             (unsigned long long)((uintptr_t)places[index].data % 32),
                             (unsigned long long)places[index].size_bytes, (unsigned long long)got[index],
                             (unsigned long long)expected[index]);
        }
        (void)printf("check\t%s\t%s\t%zu digests\t%llu wrong\n", what, one.name, places.size(),
                     (unsigned long long)(wrong - before));
    }
    TRY(cudaFree(device_places));
    TRY(cudaFree(digests));
    return wrong;
}

static int check(bool quick)
{
    const uint64_t size = 64u << 20, longest = quick ? 40000 : 5u << 20;
    std::vector<uint8_t> bytes(size);
    std::vector<struct place> every, some;
    std::vector<variant> all = variants();
    uint8_t *device_bytes;
    uint64_t wrong;

    for (uint64_t at = 0; at < size; at += 8) {
        uint64_t value = random_next();
        memcpy(&bytes[at], &value, 8);
    }
    TRY(cudaMalloc(&device_bytes, size));
    TRY(cudaMemcpy(device_bytes, bytes.data(), size, cudaMemcpyHostToDevice));
    for (uint32_t length = 0; length <= 4097; length += quick ? 61 : 1)
        for (uint32_t start = 0; start < 32; start += quick ? 5 : 1)
            every.push_back({bytes.data() + random_next() % (size / 64) * 32 + start, length});
    for (struct place &place : every) /* what lies too near to the end */
        if ((uint64_t)(place.data - bytes.data()) + place.size_bytes > size)
            place.data -= 8192;
    for (uint32_t index = 0; index < (quick ? 50u : 4000u); index++) {
        uint64_t length = random_next() % longest, around = (uint64_t)16384 << random_next() % 9;

        if (index % 2)
            length = around + random_next() % 5 - 2;
        if (length > longest)
            length = longest;
        some.push_back({bytes.data() + random_next() % (size - length), length});
    }
    wrong = check_places(all, bytes.data(), device_bytes, every, "every length and start");
    wrong += check_places(all, bytes.data(), device_bytes, some, "long");
    TRY(cudaFree(device_bytes));
    return wrong != 0;
}

/* ---- rates ---- */

static __global__ void fill(uint64_t *words, uint64_t count)
{
    for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count;
         at += (uint64_t)gridDim.x * blockDim.x) {
        uint64_t x = (at + 1) * 0x9e3779b97f4a7c15ull;

        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ x >> 27) * 0x94d049bb133111ebull;
        words[at] = x ^ x >> 31;
    }
}

/* Reads all and keeps nothing, eight 16-byte loads in flight a thread. */
static __global__ void __launch_bounds__(256) read_only(const uint4 *from, uint64_t count, uint32_t *sink)
{
    uint32_t seen = 0;
    uint64_t step = (uint64_t)gridDim.x * 256 * 8;

    for (uint64_t at = (uint64_t)blockIdx.x * 256 * 8 + threadIdx.x; at < count; at += step) {
        uint4 some[8];
#pragma unroll
        for (int index = 0; index < 8; index++)
            some[index] = __ldcs(from + at + index * 256);
#pragma unroll
        for (int index = 0; index < 8; index++)
            seen ^= some[index].x ^ some[index].y ^ some[index].z ^ some[index].w;
    }
    if (seen == 0x12345678) /* never all of them: keeps the loads */
        atomicAdd(sink, 1);
}

struct bench {
    uint8_t *bytes;
    uint64_t size, *digests;
    cudaEvent_t begin, end;
    uint64_t turn;
};

static double median(std::vector<double> &values)
{
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

/* Another window of the buffer each time. */
static uint8_t *window_of(struct bench &bench, uint64_t size)
{
    return bench.bytes + bench.turn++ * 7 % (bench.size / size) * size;
}

static double seconds_between(const struct bench &bench)
{
    float milliseconds;

    TRY(cudaEventSynchronize(bench.end));
    TRY(cudaEventElapsedTime(&milliseconds, bench.begin, bench.end));
    return milliseconds / 1000.0;
}

static double time_digests(struct bench &bench, const variant &one, uint64_t size, uint64_t block,
                           uint64_t shift)
{
    struct work work = {NULL, window_of(bench, size) + shift, size - shift, block,
                        (size - shift + block - 1) / block};

    TRY(cudaEventRecord(bench.begin));
    launch(one, work, bench.digests);
    TRY(cudaEventRecord(bench.end));
    return (double)work.run_bytes / seconds_between(bench);
}

static double time_reads(struct bench &bench, uint64_t size)
{
    const uint4 *from = (const uint4 *)window_of(bench, size);

    TRY(cudaEventRecord(bench.begin));
    read_only<<<132 * 8, 256>>>(from, size / 16, (uint32_t *)bench.digests);
    TRY(cudaEventRecord(bench.end));
    TRY(cudaGetLastError());
    return (double)size / seconds_between(bench);
}

/* Digests of what was measured against the reference: `samples` blocks of the run. */
static uint64_t check_run(struct bench &bench, const variant &one, uint64_t size, uint64_t block,
                          uint64_t shift, uint64_t samples)
{
    struct work work = {NULL, bench.bytes + shift, size - shift, block, (size - shift + block - 1) / block};
    std::vector<uint8_t> bytes(block);
    uint64_t got, wrong = 0;

    TRY(cudaMemset(bench.digests, 0x5a, work.count * 8));
    launch(one, work, bench.digests);
    TRY(cudaDeviceSynchronize());
    for (uint64_t sample = 0; sample < samples; sample++) {
        uint64_t index = sample == 0 ? work.count - 1 : random_next() % work.count, at = index * block;
        uint64_t length = work.run_bytes - at < block ? work.run_bytes - at : block;

        TRY(cudaMemcpy(bytes.data(), work.run + at, length, cudaMemcpyDeviceToHost));
        TRY(cudaMemcpy(&got, bench.digests + index, 8, cudaMemcpyDeviceToHost));
        wrong += got != reference_digest(bytes.data(), length);
    }
    return wrong;
}

static void measure_row(struct bench &bench, const std::vector<variant> &all, uint64_t size, uint64_t block,
                        uint64_t shift, uint64_t *wrong)
{
    const int rounds = 15;
    std::vector<std::vector<double>> rates(all.size() + 1);

    for (const variant &one : all)
        *wrong += check_run(bench, one, size, block, shift, 8);
    for (int round = -2; round < rounds; round++) {
        double rate = time_reads(bench, size);

        if (round >= 0)
            rates[all.size()].push_back(rate);
        for (size_t index = 0; index < all.size(); index++) {
            rate = time_digests(bench, all[index], size, block, shift);
            if (round >= 0)
                rates[index].push_back(rate);
        }
    }
    (void)printf("%llu MiB\t%llu KiB\t+%llu\t%llu", (unsigned long long)(size >> 20),
                 (unsigned long long)(block >> 10), (unsigned long long)shift,
                 (unsigned long long)((size + block - 1) / block));
    for (std::vector<double> &some : rates) {
        double middle = median(some);

        (void)printf("\t%.0f (%.0f-%.0f)", middle / 1e9, some.front() / 1e9, some.back() / 1e9);
    }
    (void)printf("\n");
    (void)fflush(stdout);
}

static void measure_copy(struct bench &bench)
{
    std::vector<double> rates;

    for (int round = 0; round < 7; round++) {
        TRY(cudaEventRecord(bench.begin));
        TRY(cudaMemcpyAsync(bench.bytes, bench.bytes + bench.size / 2, bench.size / 2,
                            cudaMemcpyDeviceToDevice));
        TRY(cudaEventRecord(bench.end));
        rates.push_back((double)bench.size / seconds_between(bench));
    }
    (void)printf("# copy, read and written: %.0f GB/s\n", median(rates) / 1e9);
}

static int measure(uint64_t gib)
{
    static const uint64_t shifts[] = {1, 2, 4, 8, 0};
    struct bench bench = {NULL, gib << 30, NULL, NULL, NULL, 0};
    std::vector<variant> all = variants();
    uint64_t wrong = 0, sizes[] = {256u << 20, 1u << 30, bench.size};

    TRY(cudaMalloc(&bench.bytes, bench.size));
    TRY(cudaMalloc(&bench.digests, (bench.size >> 14) * 8));
    TRY(cudaEventCreate(&bench.begin));
    TRY(cudaEventCreate(&bench.end));
    measure_copy(bench);
    fill<<<132 * 8, 256>>>((uint64_t *)bench.bytes, bench.size / 8);
    TRY(cudaDeviceSynchronize());
    (void)printf("# GB/s, median (lowest-highest)\nbuffer\tblock\tstart\tblocks");
    for (const variant &one : all)
        (void)printf("\t%s", one.name);
    (void)printf("\tread\n");
    for (uint64_t size : sizes)
        for (uint64_t block = 16384; block <= 4u << 20; block *= 2)
            measure_row(bench, all, size, block, 0, &wrong);
    for (uint64_t shift : shifts)
        measure_row(bench, all, sizes[2], 256u << 10, shift, &wrong);
    for (uint64_t size = 1u << 20; size <= 64u << 20; size *= 4)
        for (uint64_t block = 65536; block <= 1u << 20; block *= 4)
            measure_row(bench, all, size, block, 0, &wrong);
    (void)printf("wrong digests: %llu\n", (unsigned long long)wrong);
    TRY(cudaFree(bench.bytes));
    TRY(cudaFree(bench.digests));
    return wrong != 0;
}

int main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "check") == 0)
        return check(false);
    if (argc >= 2 && strcmp(argv[1], "quick") == 0)
        return check(true);
    if (argc >= 2 && strcmp(argv[1], "measure") == 0)
        return measure(argc > 2 ? strtoull(argv[2], NULL, 10) : 8);
    (void)fprintf(stderr, "usage: digest_gpu check|quick|measure [GIB]\n");
    return 2;
}
