package data

import (
	"fmt"
	"path/filepath"
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/internal/disk"
)

// classic is a data set of labelled images in files with fixed names.
type classic struct {
	name      string
	usual     string // Debian's directory of it; may be empty
	archive   string // the directory in its archive; may be empty
	fetch     string // where to download it
	mean, std []float64
	classes   []string    // names; nil for digits
	parts     [2][]string // the files to train and to test with
	decode    func(paths []string) (images, labels Array, err error)
}

var mnistParts = [2][]string{
	{"train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
	{"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"},
}

// Mean and standard deviation are over all training pixels/255, rounded as in common recipes such as
// PyTorch's examples/mnist/main.py. CIFAR-10 is the binary version
// (https://www.cs.toronto.edu/~kriz/cifar.html). Some recipes use its mean deviation within images instead:
// 0.2023, 0.1994, 0.2010.
var (
	mnist = classic{
		name: "mnist", fetch: "https://ossci-datasets.s3.amazonaws.com/mnist/",
		mean: []float64{0.1307}, std: []float64{0.3081}, parts: mnistParts, decode: decodeMNIST,
	}
	fashionMNIST = classic{
		name: "fashion-mnist", usual: "/usr/share/datasets/fashion-mnist",
		fetch: "https://github.com/zalandoresearch/fashion-mnist, or in the Debian package " +
			"dataset-fashion-mnist",
		mean: []float64{0.2860}, std: []float64{0.3530}, parts: mnistParts, decode: decodeMNIST,
		classes: []string{"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker",
			"Bag", "Ankle boot"},
	}
	cifar10 = classic{
		name: "cifar10", archive: "cifar-10-batches-bin",
		fetch: "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
		mean:  []float64{0.4914, 0.4822, 0.4465}, std: []float64{0.2470, 0.2435, 0.2616},
		classes: []string{"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship",
			"truck"},
		parts: [2][]string{{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
			"data_batch_5.bin"}, {"test_batch.bin"}},
		decode: decodeCIFAR10,
	}
)

func (c classic) set() set {
	return set{tasks: classes, usual: c.usual, want: "the directory of its files, which are at " + c.fetch,
		settings: func(o *Options) []arg.Setting { return imageSettings(o, "the set's") },
		files:    c.files, open: c.open}
}

// files returns the paths of all files, plain or with .gz.
func (c classic) files(directory string) (paths []string, err error) {
	places := []string{directory, filepath.Join(directory, c.archive)}
	for _, name := range slices.Concat(c.parts[:]...) {
		path, err := locate(places, name, name+".gz")
		if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

func (c classic) open(paths []string, o Options) (train, test Dataset, err error) {
	var sets []*arraySet
	for _, part := range c.parts {
		images, labels, err := c.decode(paths[:len(part)])
		if err != nil {
			return nil, nil, fmt.Errorf("%w: get it again from %s", err, c.fetch)
		}
		set, err := newArrays(c.name, 10, images, asTargets(labels))
		if err == nil {
			err = set.normalise(o.normal(c.mean, c.std))
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%w (in %s)", err, paths[0])
		}
		set.info.ClassNames = c.classes
		sets, paths = append(sets, set), paths[len(part):]
	}
	return trainAndTest(o, sets)
}

func decodeMNIST(paths []string) (images, labels Array, err error) {
	if images, err = readArray(paths[0], decodeIDX); err == nil {
		labels, err = readArray(paths[1], decodeIDX)
	}
	if err == nil && (len(images.Shape) != 3 || len(labels.Shape) != 1 || images.Shape[1] != 28 ||
		images.Shape[2] != 28) {
		err = fmt.Errorf("%s has the shape %v and the labels %v; want [n 28 28] and [n]", paths[0],
			images.Shape, labels.Shape)
	}
	if err == nil {
		images.Shape = slices.Insert(images.Shape, 1, 1) // a channel
	}
	return images, labels, err
}

// decodeCIFAR10 reads files of records: a label byte, then 32 x 32 bytes each of red, green and blue.
func decodeCIFAR10(paths []string) (images, labels Array, err error) {
	const record, most = 1 + 3*32*32, 1 << 30
	for _, path := range paths {
		content, err := disk.Read(path, most)
		if err == nil && len(content)%record != 0 {
			err = fmt.Errorf("%s: %d bytes are no whole number of images of %d", path, len(content), record)
		}
		if err != nil {
			return images, labels, err
		}
		for r := range slices.Chunk(content, record) {
			labels.Uint8, images.Uint8 = append(labels.Uint8, r[0]), append(images.Uint8, r[1:]...)
		}
	}
	n := int64(len(labels.Uint8))
	images.Kind, images.Shape, labels.Kind, labels.Shape = Uint8, []int64{n, 3, 32, 32}, Uint8, []int64{n}
	return images, labels, nil
}
