package safetensors_test

// load is a tensor's Load that gives the data in one piece, or fails.
func load(data []byte, err error) func(func([]byte) error) error {
	return func(write func([]byte) error) error {
		if err != nil {
			return err
		}
		return write(data)
	}
}
