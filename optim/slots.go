package optim

// Slots is how many tensors of a parameter's size an optimizer by this name keeps for each
// parameter: none for plain SGD, one with momentum, two for Adam. Its errors are those of New.
func Slots(name string, config Config) (int, error) {
	o, err := New(name, config)
	if err != nil {
		return 0, err
	}
	defer o.Close()
	return len(o.(*optimizer).rule.slots()), nil
}
