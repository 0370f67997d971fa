package data

var (
	DecodeIDX = decodeIDX
	DecodeNPY = decodeNPY

	Permutation = permutation
)

// NewImages returns normalised images.
func NewImages(name string, classes int, images, labels Array, mean, std []float64) (Dataset, error) {
	return normalisedSet(name, classes, fileArray{Array: images}, labels, mean, std)
}

// NewText is a text as bytes.
func NewText(text string, window int) (Dataset, error) {
	return newText([]byte(text), 1, window, Info{Name: "text", Classes: 256, Source: Uint8})
}

// Forget removes a set that was registered.
func Forget(name string) { delete(sets, name) }
