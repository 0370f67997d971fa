package models

// Forget removes the model that was registered last.
func Forget() { registry = registry[:len(registry)-1] }
