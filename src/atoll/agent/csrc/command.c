/* The table of commands: found by id, started, kept after their end, forgotten. */
#include "agent.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "clock.h"

static struct command **bucket_of(struct agent *a, const uint8_t *id) {
    uint32_t hash = 2166136261u;
    for (int i = 0; i < EXECUTION_ID_BYTES; i++) hash = (hash ^ id[i]) * 16777619u;
    return &a->buckets[hash % BUCKETS];
}

struct command *command_find(struct agent *a, const uint8_t *id) {
    struct command *c = *bucket_of(a, id);
    while (c && memcmp(c->id, id, EXECUTION_ID_BYTES) != 0) c = c->bucket_next;
    return c;
}

static void list_append(struct command_list *list, struct command *c) {
    c->prev = list->last;
    c->next = NULL;
    *(list->last ? &list->last->next : &list->first) = c;
    list->last = c;
    list->count++;
}

static void list_remove(struct command_list *list, struct command *c) {
    *(c->prev ? &c->prev->next : &list->first) = c->next;
    *(c->next ? &c->next->prev : &list->last) = c->prev;
    list->count--;
}

/* The inherited environment with the request's laid over it. One array; the strings stay where they are. */
static char **merge_environment(char **inherited, char **own) {
    size_t count = 1;
    for (char **entry = inherited; *entry; entry++) count++;
    for (char **entry = own; *entry; entry++) count++;
    char **merged = must_alloc(count * sizeof *merged), **next = merged;
    for (char **entry = inherited; *entry; entry++) {
        size_t name = strcspn(*entry, "=") + 1;
        bool replaced = false;
        for (char **over = own; *over && !replaced; over++) replaced = strncmp(*entry, *over, name) == 0;
        if (!replaced) *next++ = *entry;
    }
    for (char **entry = own; *entry; entry++) *next++ = *entry;
    return merged;
}

/* The agent's ends do not block, the command's ends do: a program expects that. */
static bool open_pipe(int *own, int *theirs, int own_index) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0) return false;
    *own = ends[own_index];
    *theirs = ends[1 - own_index];
    fcntl(*own, F_SETFL, O_NONBLOCK);
    return true;
}

/* The command's three descriptors into `stdio`, the agent's ends into the command. */
static bool open_stdio(struct agent *a, struct command *c, const struct request *r, int stdio[3]) {
    if (r->flags & FLAG_PTY) {
        c->out.fd = terminal_open(&a->identity, r->rows, r->cols, &stdio[0]);
        if (c->out.fd < 0) return false;
        stdio[1] = stdio[2] = stdio[0];
        c->in.fd = fcntl(c->out.fd, F_DUPFD_CLOEXEC, 3); /* epoll tells readable and writable apart by descriptor */
        c->terminal = true;
        return c->in.fd >= 0;
    }
    stdio[0] = a->null_fd;
    if ((r->flags & FLAG_STDIN) && !open_pipe(&c->in.fd, &stdio[0], 1)) return false;
    return open_pipe(&c->out.fd, &stdio[1], 0) && open_pipe(&c->err.fd, &stdio[2], 0);
}

static void close_stdio(const struct agent *a, int stdio[3]) {
    for (int i = 0; i < 3; i++)
        if (stdio[i] >= 0 && stdio[i] != a->null_fd && (i == 0 || stdio[i] != stdio[0])) close(stdio[i]);
}

static struct command *command_new(struct agent *a) {
    struct command *c = must_alloc(sizeof *c);
    c->in = (struct source){SOURCE_STDIN, -1, {c}};
    c->out = (struct source){SOURCE_STDOUT, -1, {c}};
    c->err = (struct source){SOURCE_STDERR, -1, {c}};
    c->deadline_at = c->kill_at = c->drain_at = c->terminal_look_at = c->output_held_until = NEVER;
    c->tree.tag = ++a->last_tag;
    return c;
}

static void command_free(struct command *c) {
    source_close(&c->in);
    source_close(&c->out);
    source_close(&c->err);
    ring_free(&c->ring);
    free(c->capture[0].data);
    free(c->capture[1].data);
    free(c);
}

static enum spawn_outcome launch(struct agent *a, struct command *c, const struct spawn_plan *plan) {
    c->started_ms = epoch_ms();
    enum spawn_outcome outcome = spawn_process(&a->identity, plan, &c->pid);
    c->tree.root = c->pid;
    return outcome;
}

static void adopt(struct agent *a, struct command *c, const struct request *r) {
    memcpy(c->id, r->execution, EXECUTION_ID_BYTES);
    c->run = r->type == REQ_RUN;
    c->capture_max = r->capture;
    if (r->timeout_ms) c->deadline_at = monotonic_ms() + r->timeout_ms;
    c->known = true;
    struct command **bucket = bucket_of(a, c->id);
    c->bucket_next = *bucket;
    *bucket = c;
    list_append(&a->running, c);
    source_add(a, &c->out, EPOLLIN);
    if (c->err.fd >= 0) source_add(a, &c->err, EPOLLIN);
    if (!c->run) ring_mark(&c->ring, EVENT_INIT);
}

struct command *command_start(struct agent *a, const struct request *r) {
    if (a->running.count >= MAX_RUNNING) {
        answer_error(a, r->id, ERR_TOO_MANY_EXECUTIONS, "256 commands run already.");
        return NULL;
    }
    if (a->stopping) {
        answer_error(a, r->id, ERR_UNKNOWN, "The commands are being stopped.");
        return NULL;
    }
    struct command *c = command_new(a);
    struct spawn_plan plan = {r->argv, NULL, r->cwd, {-1, -1, -1}, r->flags & FLAG_PTY, c->tree.tag};
    enum spawn_outcome outcome = SPAWN_FAILED;
    if (open_stdio(a, c, r, plan.stdio)) {
        plan.env = merge_environment(a->environment, r->env);
        outcome = launch(a, c, &plan);
        free(plan.env);
    }
    close_stdio(a, plan.stdio);
    if (outcome == SPAWN_OK) {
        adopt(a, c, r);
        return c;
    }
    if (outcome == SPAWN_NO_CWD)
        answer_error(a, r->id, ERR_INVALID_REQUEST, "The working directory cannot be entered.");
    else
        answer_error(a, r->id, ERR_UNKNOWN, "No process could be made.");
    command_free(c);
    return NULL;
}

struct command *command_launch_entrypoint(struct agent *a, char **argv) {
    struct command *c = command_new(a);
    struct spawn_plan plan = {argv, a->environment, NULL, {a->null_fd, a->null_fd, a->null_fd}, false, c->tree.tag};
    if (launch(a, c, &plan) == SPAWN_OK) return c;
    command_free(c);
    return NULL;
}

static size_t kept_bytes(const struct command *c) {
    return sizeof *c + ring_footprint(&c->ring) + c->capture[0].cap + c->capture[1].cap;
}

static void capture_shrink(struct capture *kept) {
    if (kept->cap == kept->len) return;
    kept->data = must_resize(kept->data, kept->len);
    kept->cap = kept->len;
}

/* Rings may not make the agent itself the greedy process of a small sandbox. */
static size_t kept_bytes_max(const struct agent *a) {
    uint64_t share = a->memory_limit / 8;
    return share && share < MAX_EXITED_BYTES ? (size_t)share : MAX_EXITED_BYTES;
}

void command_retire(struct agent *a, struct command *c) {
    ring_shrink(&c->ring);
    capture_shrink(&c->capture[0]);
    capture_shrink(&c->capture[1]);
    list_remove(&a->running, c);
    list_append(&a->exited, c);
    a->exited_bytes += kept_bytes(c);
    while (a->exited.count > 1 && (a->exited.count > MAX_EXITED || a->exited_bytes > kept_bytes_max(a)))
        command_forget(a, a->exited.first);
}

static void bury(struct agent *a, struct command *c) {
    c->next = a->graveyard;
    a->graveyard = c;
}

void command_forget(struct agent *a, struct command *c) {
    struct command **link = bucket_of(a, c->id);
    while (*link != c) link = &(*link)->bucket_next;
    *link = c->bucket_next;
    list_remove(&a->exited, c);
    a->exited_bytes -= kept_bytes(c);
    c->known = false;
    if (c->pins == 0) bury(a, c);
}

void command_unpin(struct agent *a, struct command *c) {
    if (--c->pins == 0 && !c->known) bury(a, c);
}

void commands_bury(struct agent *a) {
    while (a->graveyard) {
        struct command *c = a->graveyard;
        a->graveyard = c->next;
        command_free(c);
    }
}
