void printk(const char *fmt, ...);
