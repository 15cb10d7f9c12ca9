#include "agent.h"

#include <signal.h>

#include "clock.h"

static void handle_read(struct agent *a, const struct request *r, struct command *c) {
    if (c->run) {
        answer_error(a, r->id, ERR_INVALID_REQUEST, "A command started by RUN keeps no events.");
        return;
    }
    waiter_add(a, r, c, r->wait_ms ? monotonic_ms() + r->wait_ms : 0);
}

static void handle_signal(struct agent *a, const struct request *r, struct command *c) {
    if (c->phase == PHASE_OVER) {
        answer_error(a, r->id, ERR_EXECUTION_EXITED, "The command has ended.");
        return;
    }
    command_signal(a, c, r->signal, r->cancel);
    answer_ok(a, r->id);
}

static void handle_resize(struct agent *a, const struct request *r, struct command *c) {
    if (c->phase == PHASE_OVER)
        answer_error(a, r->id, ERR_EXECUTION_EXITED, "The command has ended.");
    else if (!c->terminal || !terminal_resize(c->out.fd, r->rows, r->cols))
        answer_error(a, r->id, ERR_INVALID_REQUEST, "The command has no terminal.");
    else {
        /* gVisor keeps the new size and signals nobody, and its master knows no foreground. */
        if (!terminal_tells_resize(c->out.fd)) command_signal(a, c, SIGWINCH, false);
        answer_ok(a, r->id);
    }
}

static void handle_forget(struct agent *a, const struct request *r, struct command *c) {
    if (c->phase != PHASE_OVER) {
        answer_error(a, r->id, ERR_INVALID_REQUEST, "The command runs.");
        return;
    }
    command_forget(a, c);
    answer_ok(a, r->id);
}

static void handle_stdin(struct agent *a, const struct request *r, struct command *c) {
    if (c->phase == PHASE_OVER)
        answer_error(a, r->id, ERR_EXECUTION_EXITED, "The command has ended.");
    else
        input_request(a, c, r);
}

static void handle_list(struct agent *a, const struct request *r) {
    for (struct command *c = a->exited.first; c; c = c->next) answer_item(a, r->id, c);
    for (struct command *c = a->running.first; c; c = c->next) answer_item(a, r->id, c);
    answer_ok(a, r->id);
}

static void handle_start(struct agent *a, const struct request *r) {
    struct command *c = command_find(a, r->execution);
    bool existing = c != NULL;
    if (!existing && (c = command_start(a, r)) == NULL) return;
    if (r->type == REQ_START)
        answer_started(a, r->id, c, existing);
    else
        waiter_add(a, r, c, NEVER);
}

static void handle_stop(struct agent *a, const struct request *r) {
    hold_release(a);
    a->stopping = true;
    for (struct command *c = a->running.first; c; c = c->next) command_end(a, c, REASON_SHUTDOWN, r->grace_ms);
    streams_stop(a);
    waiter_add(a, r, NULL, NEVER);
}

/* Nothing is written any more once this is answered: a snapshot can be taken. */
static void handle_quiet(struct agent *a, const struct request *r) {
    streams_stop(a);
    waiter_add(a, r, NULL, NEVER);
}

/* As QUIET, and commands stand still too: the snapshot is of one moment. */
static void handle_hold(struct agent *a, const struct request *r) {
    hold_begin(a, r->max_ms);
    waiter_add(a, r, NULL, monotonic_ms() + HOLD_LIMIT_MS);
}

static void handle_release(struct agent *a, const struct request *r) {
    hold_release(a);
    answer_ok(a, r->id);
}

static void handle_hello(struct agent *a, const struct request *r) {
    waiters_drop(a);
    streams_drop(a);
    hold_release(a);
    a->stopping = false;
    for (struct command *c = a->running.first; c; c = c->next) input_orphan(c);
    answer_hello(a, r->id, r->epoch);
}

static void handle_of_command(struct agent *a, const struct request *r) {
    struct command *c = command_find(a, r->execution);
    if (c == NULL) {
        answer_error(a, r->id, ERR_EXECUTION_NOT_FOUND, "There is no such command.");
        return;
    }
    switch (r->type) {
    case REQ_READ: handle_read(a, r, c); break;
    case REQ_STDIN: handle_stdin(a, r, c); break;
    case REQ_SIGNAL: handle_signal(a, r, c); break;
    case REQ_RESIZE: handle_resize(a, r, c); break;
    case REQ_FORGET: handle_forget(a, r, c); break;
    default: waiter_add(a, r, c, NEVER); /* WATCH */
    }
}

void request_handle(struct agent *a, const uint8_t *frame, size_t len) {
    struct request r;
    const char *wrong = request_decode(&r, frame, len);
    if (wrong)
        answer_error(a, r.id, ERR_INVALID_REQUEST, wrong);
    else
        switch (r.type) {
        case REQ_HELLO: handle_hello(a, &r); break;
        case REQ_OOM: memory_kill(a, monotonic_ms()); break;
        case REQ_START:
        case REQ_RUN: handle_start(a, &r); break;
        case REQ_LIST: handle_list(a, &r); break;
        case REQ_STATS: memory_stats(a, r.id); break;
        case REQ_STOP: handle_stop(a, &r); break;
        case REQ_QUIET: handle_quiet(a, &r); break;
        case REQ_HOLD: handle_hold(a, &r); break;
        case REQ_RELEASE: handle_release(a, &r); break;
        case REQ_OPEN: stream_open(a, &r); break;
        case REQ_DATA:
        case REQ_CREDIT:
        case REQ_FINISH:
        case REQ_CLOSE: stream_request(a, &r); break;
        default: handle_of_command(a, &r);
        }
    request_free(&r);
}
