#include <stddef.h>
#include <stdint.h>
#define ARG_UNUSED(x) (void)(x)
typedef struct { int64_t ticks; } k_timeout_t;
k_timeout_t k_timeout_ms(int ms);
#define K_MSEC(ms) k_timeout_ms(ms)
struct k_sem { unsigned int count, limit; };
#define K_SEM_DEFINE(name, initial_count, count_limit) struct k_sem name = {(initial_count), (count_limit)}
int k_sem_take(struct k_sem *sem, k_timeout_t timeout);
void k_sem_give(struct k_sem *sem);
