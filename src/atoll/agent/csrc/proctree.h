/* The processes of the sandbox as /proc shows them: whose they are, which is the largest, and their end. */
#ifndef ATOLL_PROCTREE_H
#define ATOLL_PROCTREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

/* Every process of a command inherits a mark: the value of a resource limit that has no effect on Linux nor in gVisor. It
 * survives setsid and the death of parents, and /proc shows it to everyone. A process that changes it leaves its tree so, but
 * not the sandbox. */
#define TREE_TAG_LIMIT RLIMIT_RSS
#define TREE_TAG_BASE 0x4000000000000000ULL

struct process {
    pid_t pid, parent, group, session;
    char state;
    uint64_t rss_pages;
    uint64_t tag;
    bool member; /* of the tree asked for last */
};

struct snapshot {
    struct process *list;
    size_t count, cap;
};

/* Which tree: the first process while it has not been reaped (else 0), and the tag. */
struct tree {
    pid_t root;
    uint64_t tag;
};

void snapshot_take(struct snapshot *s);
void snapshot_free(struct snapshot *s);
size_t snapshot_mark(struct snapshot *s, struct tree tree); /* sets `member`; returns how many that are alive */
const struct process *snapshot_largest(const struct snapshot *s); /* never the agent; NULL when there is none */

void tree_signal(struct tree tree, int number);
void tree_kill(struct tree tree); /* SIGKILL, over and over, until none is left or the rounds are used up */
uint64_t process_pages(pid_t pid); /* resident */
char process_state(pid_t pid);    /* as in /proc/PID/stat; 0 when there is none */

#endif
