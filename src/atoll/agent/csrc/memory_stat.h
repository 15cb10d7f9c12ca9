/* Reads what the kernel writes in a memory cgroup. Pure: text in, numbers out. */
#ifndef ATOLL_MEMORY_STAT_H
#define ATOLL_MEMORY_STAT_H

#include <stdbool.h>
#include <stdint.h>

/* The value of a line `key value`; false when there is none. */
bool stat_value(const char *text, const char *key, uint64_t *value);

/* Memory that only a kill gives back: anonymous and shared; the page cache does not count. False when it is not there. */
bool stat_held_bytes(const char *text, int version, uint64_t *bytes);

#endif
