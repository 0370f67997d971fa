package safetensors

var (
	NewFile   = newFile
	MaxHeader = maxHeader
)
