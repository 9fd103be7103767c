void irq_enable(unsigned int irq);
void irq_disable(unsigned int irq);
void irq_connect(unsigned int irq, unsigned int priority, void (*isr)(const void *), const void *argument);
#define IRQ_CONNECT(irq_p, priority_p, isr_p, isr_param_p, flags_p) irq_connect(irq_p, priority_p, isr_p, isr_param_p)
