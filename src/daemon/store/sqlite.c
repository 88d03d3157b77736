/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store in one SQLite file: write-ahead log, no wait for the disk at each change (a crash of the machine
 * may lose the last renewals, which clients repeat anyway). The connection holds the file for itself, so a
 * second heftd on the same file is told instead of mixing two fleets. The file holds tokens: only its owner
 * reads it.
 */
#include "base/clock.h"
#include "base/error.h"
#include "daemon/store/store.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SQLITE_SCHEMA_VERSION 1
#define SQLITE_APPLICATION_ID 0x68656674 /* "heft" */
#define SQLITE_BUSY_MS 500

enum statement { PUT, TOUCH, REMOVE, EACH, STATEMENT_COUNT };

static const char *const statement_texts[STATEMENT_COUNT] = {
    "INSERT OR REPLACE INTO records (name, generation, model, revision, stage, body, lease_ms, end_wall_ms, "
    "published_wall_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    "UPDATE records SET lease_ms = ?3, end_wall_ms = ?4 WHERE name = ?1 AND generation = ?2",
    "DELETE FROM records WHERE name = ?1",
    "SELECT name, generation, model, revision, stage, body, lease_ms, end_wall_ms, published_wall_ms "
    "FROM records ORDER BY name",
};

struct sqlite_store {
    struct heft_store base;
    sqlite3 *db;
    sqlite3_stmt *statements[STATEMENT_COUNT];
};

static struct sqlite_store *self_of(struct heft_store *store)
{
    return (struct sqlite_store *)store;
}

/* Turns SQLite's answer into one of ours, with what to do about it. */
static int report(struct sqlite_store *self, int code, const char *doing, struct heft_error *error)
{
    const char *path = self->base.name + strlen("sqlite:");
    const char *reason = self->db ? sqlite3_errmsg(self->db) : sqlite3_errstr(code);

    /* What SQLite makes of a place that can't be written depends on which of its files it tried first. */
    if ((code & 0xFF) == SQLITE_IOERR && access(path, F_OK) == 0 && access(path, W_OK))
        code = SQLITE_READONLY;
    switch (code & 0xFF) {
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
        return heft_error_set(
            error, HEFT_ERR_MANIFEST,
            "store %s is damaged or no database (%s, %s): move it away, a new one is made and "
            "replicas publish again by themselves",
            path, doing, reason);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return heft_error_set(
            error, HEFT_ERR_BUSY,
            "store %s is in use by another process (%s): stop the other heftd, or give this one "
            "its own with --store sqlite:PATH",
            path, doing);
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_AUTH:
        return heft_error_set(
            error, HEFT_ERR_PERMISSION,
            "store %s can't be written (%s, %s): check the rights of the file and of its folder, "
            "or choose another place with --store sqlite:PATH",
            path, doing, reason);
    case SQLITE_FULL:
        return heft_error_set(error, HEFT_ERR_NO_SPACE, "store %s: no space left (%s): free some", path,
                              doing);
    case SQLITE_NOMEM:
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "store %s: out of memory (%s)", path, doing);
    default:
        return heft_error_set(error, HEFT_ERR_IO, "store %s: %s: %s", path, doing, reason);
    }
}

static int execute(struct sqlite_store *self, const char *text, const char *doing, struct heft_error *error)
{
    int code = sqlite3_exec(self->db, text, NULL, NULL, NULL);

    return code == SQLITE_OK ? 0 : report(self, code, doing, error);
}

/* The single number that a query gives. */
static int ask(struct sqlite_store *self, const char *text, int64_t *number_out, struct heft_error *error)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(self->db, text, -1, &statement, NULL);

    if (code == SQLITE_OK)
        code = sqlite3_step(statement);
    if (code != SQLITE_ROW) {
        (void)sqlite3_finalize(statement);
        return report(self, code, "reading its head", error);
    }
    *number_out = sqlite3_column_int64(statement, 0);
    (void)sqlite3_finalize(statement);
    return 0;
}

static void bind_text(sqlite3_stmt *statement, int index, const char *text)
{
    (void)sqlite3_bind_text(statement, index, text ? text : "", -1, SQLITE_STATIC);
}

static int run(struct sqlite_store *self, enum statement which, const char *doing, struct heft_error *error)
{
    sqlite3_stmt *statement = self->statements[which];
    int code = sqlite3_step(statement), result = 0;

    if (code != SQLITE_DONE)
        result = report(self, code, doing, error);
    (void)sqlite3_reset(statement);
    (void)sqlite3_clear_bindings(statement);
    return result;
}

static int put(struct heft_store *store, const struct heft_stored_record *record, struct heft_error *error)
{
    struct sqlite_store *self = self_of(store);
    sqlite3_stmt *statement = self->statements[PUT];
    const struct heft_lease_publication *publication = &record->publication;

    bind_text(statement, 1, publication->name);
    (void)sqlite3_bind_blob(statement, 2, publication->generation.bytes, HEFT_GENERATION_BYTES,
                            SQLITE_STATIC);
    bind_text(statement, 3, publication->model);
    bind_text(statement, 4, publication->revision);
    bind_text(statement, 5, publication->stage);
    (void)sqlite3_bind_blob64(statement, 6, publication->body, publication->body_bytes, SQLITE_STATIC);
    (void)sqlite3_bind_int64(statement, 7, (int64_t)publication->lease_ms);
    (void)sqlite3_bind_int64(statement, 8, (int64_t)record->end_wall_ms);
    (void)sqlite3_bind_int64(statement, 9, (int64_t)record->published_wall_ms);
    return run(self, PUT, "storing a record", error);
}

static int touch(struct heft_store *store, const char *name, const struct heft_generation *generation,
                 uint64_t lease_ms, uint64_t end_wall_ms, struct heft_error *error)
{
    struct sqlite_store *self = self_of(store);
    sqlite3_stmt *statement = self->statements[TOUCH];

    bind_text(statement, 1, name);
    (void)sqlite3_bind_blob(statement, 2, generation->bytes, HEFT_GENERATION_BYTES, SQLITE_STATIC);
    (void)sqlite3_bind_int64(statement, 3, (int64_t)lease_ms);
    (void)sqlite3_bind_int64(statement, 4, (int64_t)end_wall_ms);
    return run(self, TOUCH, "storing a renewal", error);
}

static int remove_record(struct heft_store *store, const char *name, struct heft_error *error)
{
    bind_text(self_of(store)->statements[REMOVE], 1, name);
    return run(self_of(store), REMOVE, "removing a record", error);
}

static int each(struct heft_store *store, heft_store_visit_fn visit, void *context, struct heft_error *error)
{
    struct sqlite_store *self = self_of(store);
    sqlite3_stmt *statement = self->statements[EACH];
    int code, result = 0;

    while (!result && (code = sqlite3_step(statement)) != SQLITE_DONE) {
        struct heft_stored_record record;
        const void *generation;

        if (code != SQLITE_ROW) {
            result = report(self, code, "reading records", error);
            break;
        }
        memset(&record, 0, sizeof(record));
        generation = sqlite3_column_blob(statement, 1);
        if (generation && sqlite3_column_bytes(statement, 1) == HEFT_GENERATION_BYTES)
            memcpy(record.publication.generation.bytes, generation, HEFT_GENERATION_BYTES);
        record.publication.name = (const char *)sqlite3_column_text(statement, 0);
        record.publication.model = (const char *)sqlite3_column_text(statement, 2);
        record.publication.revision = (const char *)sqlite3_column_text(statement, 3);
        record.publication.stage = (const char *)sqlite3_column_text(statement, 4);
        record.publication.body = sqlite3_column_blob(statement, 5);
        record.publication.body_bytes = (uint64_t)sqlite3_column_bytes(statement, 5);
        record.publication.lease_ms = (uint64_t)sqlite3_column_int64(statement, 6);
        record.end_wall_ms = (uint64_t)sqlite3_column_int64(statement, 7);
        record.published_wall_ms = (uint64_t)sqlite3_column_int64(statement, 8);
        result = visit(context, &record, error);
    }
    (void)sqlite3_reset(statement);
    return result;
}

static void close_store(struct heft_store *store)
{
    struct sqlite_store *self = self_of(store);
    size_t index;

    for (index = 0; index < STATEMENT_COUNT; index++)
        (void)sqlite3_finalize(self->statements[index]);
    (void)sqlite3_close(self->db);
    free(self);
}

static const struct heft_store_ops sqlite_store_ops = {put, touch, remove_record, each, close_store};

/* Makes the folders above a file, each for its owner alone. */
static int make_folders(const char *path, struct heft_error *error)
{
    char *copy = strdup(path), *slash;
    int result = 0;

    if (!copy)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "store %s: out of memory", path);
    for (slash = strchr(copy + 1, '/'); slash && !result; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(copy, 0700) && errno != EEXIST)
            result = heft_error_set_errno(error, errno,
                                          "store %s: making folder %s (choose another place with --store "
                                          "sqlite:PATH)",
                                          path, copy);
        *slash = '/';
    }
    free(copy);
    return result;
}

/* A file of another program, or of a later heftd, is not touched. */
static int check_owner(struct sqlite_store *self, int *is_new_out, struct heft_error *error)
{
    const char *path = self->base.name + strlen("sqlite:");
    int64_t application = 0, version = 0, tables = 0;
    int result;

    if ((result = ask(self, "PRAGMA application_id", &application, error)) ||
        (result = ask(self, "PRAGMA user_version", &version, error)) ||
        (result = ask(self, "SELECT count(*) FROM sqlite_master", &tables, error)))
        return result;
    *is_new_out = application == 0 && tables == 0;
    if (!*is_new_out && application != SQLITE_APPLICATION_ID)
        return heft_error_set(error, HEFT_ERR_INCOMPATIBLE,
                              "store %s is a database of another program: choose another file with --store "
                              "sqlite:PATH",
                              path);
    if (version > SQLITE_SCHEMA_VERSION)
        return heft_error_set(
            error, HEFT_ERR_INCOMPATIBLE,
            "store %s has schema version %lld, this heftd knows %d: run the newer heftd, or "
            "choose another file",
            path, (long long)version, SQLITE_SCHEMA_VERSION);
    return 0;
}

static int prepare_schema(struct sqlite_store *self, struct heft_error *error)
{
    static const char schema[] =
        "BEGIN IMMEDIATE;"
        "PRAGMA application_id = 1751475828;" /* SQLITE_APPLICATION_ID */
        "PRAGMA user_version = 1;"
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;"
        "INSERT INTO meta VALUES ('starts', 0);"
        "CREATE TABLE records (name TEXT PRIMARY KEY, generation BLOB NOT NULL, model TEXT NOT NULL, "
        "revision TEXT NOT NULL, stage TEXT NOT NULL, body BLOB NOT NULL, lease_ms INTEGER NOT NULL, "
        "end_wall_ms INTEGER NOT NULL, published_wall_ms INTEGER NOT NULL);"
        "COMMIT;";
    int64_t is_sound = 0;
    int is_new, result;

    _Static_assert(SQLITE_APPLICATION_ID == 1751475828, "the schema's number");
    if ((result = execute(self, "PRAGMA locking_mode = EXCLUSIVE", "opening it", error)) ||
        (result = check_owner(self, &is_new, error)) ||
        (result = execute(self, "PRAGMA journal_mode = WAL", "opening it", error)) ||
        (result = execute(self, "PRAGMA synchronous = NORMAL", "opening it", error)) ||
        (result = execute(self, "PRAGMA cache_size = -1024", "opening it", error)))
        return result;
    if (is_new)
        return execute(self, schema, "making its tables", error);
    result = ask(self, "SELECT quick_check = 'ok' FROM pragma_quick_check(1)", &is_sound, error);
    if (!result && !is_sound)
        result = report(self, SQLITE_CORRUPT, "its own check failed", error);
    return result;
}

/* Forgets leases that ended while no heftd ran, and counts this start: also the proof that the file can be
 * written. */
static int count_start(struct sqlite_store *self, struct heft_error *error)
{
    char text[100];
    int64_t starts = 0;
    int result;

    (void)snprintf(text, sizeof(text), "DELETE FROM records WHERE end_wall_ms <= %llu",
                   (unsigned long long)heft_wall_ms());
    result = execute(self, text, "forgetting ended leases", error);
    if (!result)
        result = execute(self, "UPDATE meta SET value = value + 1 WHERE key = 'starts'",
                         "counting this start", error);

    if (!result)
        result = ask(self, "SELECT value FROM meta WHERE key = 'starts'", &starts, error);
    if (!result)
        self->base.epoch = heft_store_epoch((uint64_t)starts);
    return result;
}

int heft_store_open_sqlite(const char *path, struct heft_store **store_out, struct heft_error *error)
{
    struct sqlite_store *self;
    mode_t mask;
    size_t index;
    int code, result = make_folders(path, error);

    if (result)
        return result;
    self = calloc(1, sizeof(*self));
    if (!self)
        return heft_error_set(error, HEFT_ERR_NO_MEMORY, "store %s: out of memory", path);
    self->base.ops = &sqlite_store_ops;
    if (snprintf(self->base.name, sizeof(self->base.name), "sqlite:%s", path) >=
        (int)sizeof(self->base.name)) {
        free(self);
        return heft_error_set(error, HEFT_ERR_TOO_LARGE,
                              "store %.100s...: the path is over the limit of %zu bytes", path,
                              sizeof(self->base.name) - 8);
    }
    mask = umask(077);
    code = sqlite3_open_v2(path, &self->db,
                           SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, NULL);
    if (code != SQLITE_OK)
        result = report(self, code, "opening it", error);
    if (!result) {
        (void)sqlite3_busy_timeout(self->db, SQLITE_BUSY_MS);
        result = prepare_schema(self, error);
    }
    if (!result)
        result = count_start(self, error);
    (void)umask(mask);
    for (index = 0; !result && index < STATEMENT_COUNT; index++) {
        code = sqlite3_prepare_v3(self->db, statement_texts[index], -1, SQLITE_PREPARE_PERSISTENT,
                                  &self->statements[index], NULL);
        if (code != SQLITE_OK)
            result = report(self, code, "preparing statements", error);
    }
    if (result) {
        close_store(&self->base);
        return result;
    }
    *store_out = &self->base;
    return 0;
}
