/* A plugin for qemu-aarch64 (plugin API 1, QEMU 7.2 and later) that writes the instructions executed between calls of the
   functions trace_begin and trace_end to a file, in order, as 32-bit words. No Debian package has the header, so the few
   prototypes stand here. For programs of one thread. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t plugin_id;
struct block;
struct instruction;
extern size_t qemu_plugin_tb_n_insns(const struct block *block);
extern struct instruction *qemu_plugin_tb_get_insn(const struct block *block, size_t index);
extern const void *qemu_plugin_insn_data(const struct instruction *instruction);
extern const char *qemu_plugin_insn_symbol(const struct instruction *instruction);
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id, void (*translated)(plugin_id, struct block *));
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct block *block, void (*executed)(unsigned, void *), int flags, void *data);
extern void qemu_plugin_register_atexit_cb(plugin_id id, void (*at_exit)(plugin_id, void *), void *data);

#define VISIBLE __attribute__((visibility("default")))

VISIBLE int qemu_plugin_version = 1;

struct words {
    size_t count;
    int is_begin, is_end;
    uint32_t words[];
};

static FILE *out;
static int is_active;

static void executed(unsigned cpu, void *data) {
    const struct words *words = data;
    (void)cpu;
    if (words->is_end)
        is_active = 0;
    if (is_active)
        fwrite(words->words, sizeof(uint32_t), words->count, out);
    if (words->is_begin)
        is_active = 1;
}

static void translated(plugin_id id, struct block *block) {
    size_t count = qemu_plugin_tb_n_insns(block);
    struct words *words = malloc(sizeof *words + count * sizeof(uint32_t));
    const char *symbol = qemu_plugin_insn_symbol(qemu_plugin_tb_get_insn(block, 0));
    (void)id;
    if (!words)
        abort();
    words->count = count;
    words->is_begin = symbol && !strcmp(symbol, "trace_begin");
    words->is_end = symbol && !strcmp(symbol, "trace_end");
    for (size_t index = 0; index < count; index++)
        memcpy(&words->words[index], qemu_plugin_insn_data(qemu_plugin_tb_get_insn(block, index)), sizeof(uint32_t));
    qemu_plugin_register_vcpu_tb_exec_cb(block, executed, 0, words);
}

static void at_exit(plugin_id id, void *data) {
    (void)id;
    (void)data;
    fclose(out);
}

VISIBLE int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
    (void)info;
    if (argc != 1 || strncmp(argv[0], "out=", 4) || !(out = fopen(argv[0] + 4, "wb"))) {
        fprintf(stderr, "trace: expected out=FILE, a file that can be written\n");
        return -1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, at_exit, NULL);
    return 0;
}
