/* A worker: one operation on files, run as the sandbox's user in a process of its own, so that no slow file system holds
 * up the agent. It reads its input from descriptor 0 in parts (u32 length, bytes; the length 0 is the end, the end of the
 * pipe before that a loss), writes its answer to descriptor 1, and ends with a fault as its exit code.
 * Everything it touches may be changed by hostile processes of the same user at the same moment. */
#ifndef ATOLL_FILES_H
#define ATOLL_FILES_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "tar.h"

enum fault {
    FAULT_NONE = 0,
    FAULT_UNKNOWN = 1,
    FAULT_NOT_FOUND = 2,
    FAULT_ESCAPE = 3,       /* the path or a link of it leads outside the roots */
    FAULT_IS_FOLDER = 4,
    FAULT_NOT_FOLDER = 5,
    FAULT_DENIED = 6,
    FAULT_NO_SPACE = 7,
    FAULT_EXISTS = 8,
    FAULT_NOT_EMPTY = 9,
    FAULT_LINK_LOOP = 10,
    FAULT_READ_ONLY = 11,
    FAULT_NAME_TOO_LONG = 12,
    FAULT_TOO_DEEP = 13,
    FAULT_NOT_REGULAR = 14, /* a device, a pipe or a socket */
    FAULT_OTHER_FILE_SYSTEM = 15,
    FAULT_BAD_INPUT = 16,   /* what was sent is no tar stream, no range … */
    FAULT_CUT = 17,         /* the input ended before its end */
    FAULT_CHANGED = 18,     /* the file became shorter while it was read, or a link kept changing */
    FAULT_BUSY = 19,
    FAULT_TOO_MANY = 20     /* more is asked to be watched than a kernel or the limit allows */
};

enum {
    MAX_ROOTS = 4,
    MAX_LEVELS = 256,     /* of folders inside a root */
    MAX_LINKS = 40,
    MAX_PATH_TEXT = 16384,
    NAME_BYTES = 256,
    PART_BYTES = 1024 * 1024,
    MAX_LIST_DEPTH = 32,
    MAX_LIST_ENTRIES = 10000,
    MAX_WATCHED = 1024
};

enum fault fault_of(int error); /* of an errno */

/* files_io.c: descriptors 0 and 1 */
extern uint8_t part[PART_BYTES];
void output_write(const void *data, size_t len); /* ends the worker when nobody reads */
enum fault input_read(void *data, size_t want, size_t *got); /* *got 0: the end */
enum fault input_exact(void *data, size_t len);
enum record { RECORD_ENTRY = 1, RECORD_MORE = 2, RECORD_EVENT = 3, RECORD_OVERFLOW = 4, RECORD_COUNTS = 5 };
size_t record_entry(int dir, const char *name, const char *path); /* of what is there; the bytes of its names, 0 when gone */
void record_stat(const struct stat *st, const char *path, const char *target);
void record_bytes(enum record kind, uint8_t detail, const char *text);
void record_counts(const uint64_t *counts, size_t count);

/* files_path.c: from a client's path to descriptors. No step follows a link by itself: a race can change what is found,
 * never lead outside. */
struct root {
    char path[MAX_PATH_TEXT];
    int fd;
};

struct place {
    int dir;                   /* the folder it is in, or the root itself when `name` is "." */
    char name[NAME_BYTES];
    bool exists;
    struct stat st;            /* when it exists */
    char path[MAX_PATH_TEXT];  /* absolute and without links, for people */
};

enum last_link { LINK_FOLLOW, LINK_KEEP };
enum missing { MISSING_REFUSE, MISSING_LAST, MISSING_MAKE /* the folders above it */ };

enum fault roots_open(char **paths, size_t count);
bool is_root(const struct stat *st); /* whatever its path is by now */
struct dirent *next_entry(DIR *listing, enum fault *fault); /* NULL at the end, and where it cannot be read on */
/* Relative paths begin at the first root. */
enum fault place_find(const char *path, enum last_link last, enum missing missing, struct place *found);
enum fault place_root(const struct place *base); /* from now on there is no root but this folder */
enum fault place_open_folder(const struct place *p, int *fd);
void place_close(struct place *p);
bool name_temporary(char *name, size_t len); /* a fresh name for something half done */

/* The operations: each in the file of its subject. */
enum fault files_read(char **arguments);    /* files_transfer.c */
enum fault files_write(char **arguments);
enum fault files_stat(char **arguments);    /* files_tree.c */
enum fault files_list(char **arguments);
enum fault files_delete(char **arguments);
enum fault files_mkdir(char **arguments);
enum fault files_move(char **arguments);
enum fault files_watch(char **arguments);   /* files_watch.c */
enum fault files_pack(char **arguments);    /* files_pack.c */
enum fault files_unpack(char **arguments);  /* files_unpack.c */

bool parse_number(const char *text, unsigned base, uint64_t max, uint64_t *value);

int files_main(int argc, char **argv);

#endif
