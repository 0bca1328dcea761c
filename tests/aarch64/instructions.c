/* A plugin for qemu-aarch64 (plugin API 1, QEMU 7.2 and later) that counts the instructions a program executes and writes the
   number to standard error at its end. No Debian package has the header, so the few prototypes stand here. */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef uint64_t plugin_id;
struct block;
extern size_t qemu_plugin_tb_n_insns(const struct block *block);
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id, void (*translated)(plugin_id, struct block *));
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct block *block, int add, void *counter, uint64_t by);
extern void qemu_plugin_register_atexit_cb(plugin_id id, void (*at_exit)(plugin_id, void *), void *data);

#define VISIBLE __attribute__((visibility("default")))

VISIBLE int qemu_plugin_version = 1;
/* Not atomic: programs of one thread only. */
static uint64_t executed;

static void translated(plugin_id id, struct block *block) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &executed, qemu_plugin_tb_n_insns(block));
}

static void at_exit(plugin_id id, void *data) {
    (void)id;
    (void)data;
    fprintf(stderr, "instructions %" PRIu64 "\n", executed);
}

VISIBLE int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
    (void)info;
    (void)argc;
    (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, at_exit, NULL);
    return 0;
}
