/* SPDX-License-Identifier: Apache-2.0 */
/* heft report: a finished load's report or trace, as text or as a page. */
#include "base/error.h"
#include "cli/cli.h"
#include "cli/report_page.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>

static int write_page(const struct heft_buf *page, const char *path, struct heft_error *error)
{
    FILE *file = strcmp(path, "-") == 0 ? stdout : fopen(path, "we");
    int failed, saved;

    if (!file)
        return heft_error_set_errno(error, errno, "--html %s can't be written", path);
    errno = 0;
    failed = fwrite(page->data, 1, page->size, file) != page->size || fflush(file);
    saved = errno;
    if (file != stdout && fclose(file) && !failed) {
        failed = 1;
        saved = errno;
    }
    return failed ? heft_error_set_errno(error, saved ? saved : EIO, "writing %s", path) : HEFT_OK;
}

static int make_page(const json_t *file, const char *path, const char *out, struct heft_error *error)
{
    struct heft_buf page;
    int rc;

    heft_buf_init(&page, (size_t)1 << 30);
    rc = cli_report_page(file, &page, error);
    if (rc)
        (void)heft_error_prefix(error, rc, "%s", path);
    else
        rc = write_page(&page, out, error);
    heft_buf_free(&page);
    return rc;
}

int cli_report(struct cli *cli)
{
    const char *path = cli->arguments[0], *out = heft_config_text(&cli->config, "html");
    struct heft_error error = HEFT_ERROR_INIT;
    json_error_t where;
    json_t *file;
    const json_t *report;
    int rc = HEFT_OK;

    errno = 0;
    file = json_load_file(path, 0, &where);
    if (!file) {
        if (json_error_code(&where) == json_error_cannot_open_file)
            rc = heft_error_set_errno(&error, errno, "%s can't be read", path);
        else
            rc = heft_error_set(&error, HEFT_ERR_INVALID,
                                "%s: line %d: %s; a file of heft load --report or --trace is wanted", path,
                                where.line, where.text);
        return cli_fail(cli, rc, &error);
    }
    report = json_object_get(file, "traceEvents") ? json_object_get(file, "heft") : file;
    if (!json_is_integer(json_object_get(report, "report_version")))
        rc = heft_error_set(&error, HEFT_ERR_INVALID,
                            "%s: no report of a load; heft load --report or --trace writes one", path);
    else if (out)
        rc = make_page(file, path, out, &error);
    else if (cli->json)
        cli_print_json(report, 0);
    else
        cli_print_report(report);
    json_decref(file);
    return rc ? cli_fail(cli, rc, &error) : EXIT_DONE;
}
