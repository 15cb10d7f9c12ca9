/* The two clocks: one for waits, one for people. */
#ifndef ATOLL_CLOCK_H
#define ATOLL_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_read_ms(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static inline uint64_t monotonic_ms(void) { return clock_read_ms(CLOCK_MONOTONIC); }
static inline uint64_t epoch_ms(void) { return clock_read_ms(CLOCK_REALTIME); }

#endif
