package data

var (
	// OpenCIFAR10 reads files with fewer records than the real ones' 10,000.
	OpenCIFAR10 = func(directory string, o Options, records int) (train, test Dataset, err error) {
		return cifar10(records).open(directory, o)
	}
	DecodeIDX = decodeIDX
	DecodeNPY = decodeNPY
)

// NewImages returns normalised images.
func NewImages(name string, classes int, images, labels Array, mean, std []float32) (*Arrays, error) {
	set, err := NewArrays(name, classes, images, targets(labels))
	if err == nil {
		err = set.normalise(mean, std)
	}
	return set, err
}
