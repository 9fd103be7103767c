void irq_setmask(unsigned int mask);
void irq_setie(unsigned int ie);
