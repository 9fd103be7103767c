void flush_cpu_dcache(void);
void flush_l2_cache(void);
