/* What the build generates from app.overlay, for the macros that the project uses. */
#define DT_CAT(a, b) DT_CAT_(a, b)
#define DT_CAT_(a, b) a##b
#define DT_NODELABEL(label) DT_CAT(DT_N_NODELABEL_, label)
#define DT_REG_ADDR(node) DT_CAT(node, _REG_ADDR)
#define DT_REG_SIZE(node) DT_CAT(node, _REG_SIZE)
#define DT_IRQN(node) DT_CAT(node, _IRQN)
#define DT_IRQ(node, cell) DT_CAT(DT_CAT(node, _IRQ_), cell)
#define DT_PHANDLE(node, property) DT_CAT(DT_CAT(node, _P_), property)
#define DT_N_NODELABEL_nvdla DT_N_S_nvdla
#define DT_N_S_nvdla_REG_ADDR 0x10040000
#define DT_N_S_nvdla_REG_SIZE 0x40000
#define DT_N_S_nvdla_IRQN 5
#define DT_N_S_nvdla_IRQ_priority 1
#define DT_N_S_nvdla_P_memory_region DT_N_S_memory
#define DT_N_S_memory_REG_ADDR 0x84000000
#define DT_N_S_memory_REG_SIZE 0xC0000
