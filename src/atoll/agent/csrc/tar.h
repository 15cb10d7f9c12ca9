/* The tar format (ustar, pax and GNU's long names) without I/O of its own: what is read is hostile. */
#ifndef ATOLL_TAR_H
#define ATOLL_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TAR_BLOCK = 512, TAR_PATH_BYTES = 16384, TAR_PAX_BYTES = 65536, TAR_HEAD_MAX = 2 * TAR_PATH_BYTES + 4 * TAR_BLOCK };

struct tar_entry {
    char type; /* '0' file, '1' hard link, '2' symbolic link, '5' folder; anything else as it came */
    uint32_t mode;
    uint64_t size;
    int64_t mtime;
    char path[TAR_PATH_BYTES];
    char link[TAR_PATH_BYTES];
};

enum tar_result { TAR_ENTRY, TAR_END, TAR_BAD, TAR_FAILED /* the source did */ };

struct tar_reader {
    bool (*read)(void *context, uint8_t *data, size_t len, bool *end); /* exactly `len` bytes, or false; `end`: there were none */
    void *context;
    uint64_t left;    /* of the present entry's bytes */
    unsigned padding; /* behind them */
    char pax[TAR_PAX_BYTES];
};

/* The next entry; what is left of the one before is passed over. */
enum tar_result tar_next(struct tar_reader *r, struct tar_entry *e);
/* Up to `want` bytes of the present entry; 0: there are no more. */
enum tar_result tar_data(struct tar_reader *r, uint8_t *data, size_t want, size_t *got);

/* The blocks that begin an entry, into `head` of TAR_HEAD_MAX bytes. Returns their length. */
size_t tar_head(const struct tar_entry *e, uint8_t *head);
static inline size_t tar_padding(uint64_t size) { return (TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK; }

#endif
