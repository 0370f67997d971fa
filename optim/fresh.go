package optim

// Fresh is an optimizer with the rule, the settings and the rate of another one that has never stepped: to find out what an update takes. The caller must Close it. It is false for optimizers that are not
// of this package.
func Fresh(o Optimizer) (Optimizer, bool) {
	old, ok := o.(*optimizer)
	if !ok {
		return nil, false
	}
	return newOptimizer(old.rule, old.LR()), true
}
