package data

var (
	DecodeIDX = decodeIDX
	DecodeNPY = decodeNPY
)

// NewImages returns normalised images.
func NewImages(name string, classes int, images, labels Array, mean, std []float64) (Dataset, error) {
	set, err := newArrays(name, classes, images, asTargets(labels))
	if err == nil {
		err = set.normalise(mean, std)
	}
	return set, err
}

// NewText is a text as bytes.
func NewText(text string, window int) (Dataset, error) {
	return newText([]byte(text), 1, window, Info{Name: "text", Classes: 256, Source: Uint8})
}

// Forget removes a set that was registered.
func Forget(name string) { delete(sets, name) }
