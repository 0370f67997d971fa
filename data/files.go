package data

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"penstock.example/internal/arg"
	"penstock.example/internal/disk"
)

const npyMagic = "\x93NUMPY"

var (
	npyDescr = regexp.MustCompile(`['"]descr['"]:\s*['"]([^'"]*)['"]`)
	npyOrder = regexp.MustCompile(`['"]fortran_order['"]:\s*False`)
	npyShape = regexp.MustCompile(`['"]shape['"]:\s*\(([0-9, ]*)\)`)
)

// decodeNPY decodes an array written by numpy.save, in any version of the format
// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html). Numbers are little-endian and
// in C order. The header is a Python dictionary, such as
//
//	{'descr': '<f4', 'fortran_order': False, 'shape': (60000, 784), }
func decodeNPY(file []byte) (fileArray, error) {
	if !bytes.HasPrefix(file, []byte(npyMagic)) || len(file) < 12 {
		return fileArray{}, fmt.Errorf("it begins with %q: this is no npy file", file[:min(len(file), 6)])
	}
	var length, rest = int(binary.LittleEndian.Uint32(file[8:])), file[12:]
	switch version := [2]byte(file[6:]); version {
	case [2]byte{1, 0}:
		length, rest = int(binary.LittleEndian.Uint16(file[8:])), file[10:]
	case [2]byte{2, 0}, [2]byte{3, 0}:
	default:
		return fileArray{}, fmt.Errorf("it has version %d.%d of the format; want 1.0, 2.0 or 3.0", version[0],
			version[1])
	}
	if length > min(len(rest), disk.MaxHeader) {
		return fileArray{}, fmt.Errorf("the header has %d of %d bytes; want at most %d: the file is cut "+
			"short, or damaged", len(rest), length, disk.MaxHeader)
	}
	header := string(rest[:length])
	descr, sizes := npyDescr.FindStringSubmatch(header), npyShape.FindStringSubmatch(header)
	if descr == nil || sizes == nil || !npyOrder.MatchString(header) {
		return fileArray{}, fmt.Errorf("header %q; want an array of one type in C order: save "+
			"numpy.ascontiguousarray(x)", header)
	}
	var shape []int64
	for size := range strings.FieldsFuncSeq(sizes[1], func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := strconv.ParseInt(size, 10, 62)
		if err != nil {
			return fileArray{}, fmt.Errorf("header %q: %w", header, err)
		}
		shape = append(shape, n)
	}
	return decodeNumbers(rest[length:], descr[1], shape)
}

// decodeIDX decodes an array of bytes in the IDX format, plain or compressed with gzip. The format
// (http://yann.lecun.com/exdb/mnist/) is two zero bytes, a byte for the kind (8: unsigned bytes), a byte
// for the number of dimensions, the dimensions as 32-bit big-endian integers, and the numbers.
func decodeIDX(file []byte) (fileArray, error) {
	if bytes.HasPrefix(file, []byte{0x1f, 0x8b}) { // RFC 1952, section 2.3.1
		unzipped, err := gzip.NewReader(bytes.NewReader(file))
		if err == nil {
			file, err = disk.ReadStream(unzipped, disk.MaxUnzip)
		}
		if err != nil {
			return fileArray{}, fmt.Errorf("the gzip data: %w", err)
		}
	}
	if !bytes.HasPrefix(file, []byte{0, 0, 8}) || len(file) < 4 || len(file) < 4+4*int(file[3]) {
		return fileArray{}, fmt.Errorf("it begins with %x; want 000008 and the dimensions: it is cut short, "+
			"or no IDX file of bytes", file[:min(len(file), 4)])
	}
	var shape []int64
	rest := file[4:]
	for range file[3] {
		shape, rest = append(shape, int64(binary.BigEndian.Uint32(rest))), rest[4:]
	}
	return decodeNumbers(rest, "|u1", shape)
}

// decodeNumbers decodes numbers in the format that NumPy names descr. It checks before it allocates.
func decodeNumbers(content []byte, descr string, shape []int64) (fileArray, error) {
	width := map[string]int{"<f4": 4, "<f8": 8, "<i4": 4, "<i8": 8, "|u1": 1}[descr]
	if width == 0 {
		return fileArray{}, fmt.Errorf("its numbers are %s; want float32, float64, int32, int64 or uint8, "+
			"little-endian: save x.astype('float32'), or astype('int64') for classes", descr)
	}
	count := 1.0 // cannot overflow, and is exact up to any possible length of content
	for _, dim := range shape {
		count *= float64(dim)
	}
	if count*float64(width) != float64(len(content)) {
		return fileArray{}, fmt.Errorf("%d bytes of data; want numbers of %d bytes of the shape %v: the "+
			"file is cut short, or more follows", len(content), width, shape)
	}
	a := fileArray{Array: Array{Kind: Uint8, Shape: shape}}
	switch descr {
	case "<f4":
		a.Kind, a.Float32 = Float32, decoded[float32](content, width)
	case "<f8":
		a.Kind, a.exact = Float32, decoded[float64](content, width)
		a.Float32 = converted[float32](a.exact)
	case "<i4":
		a.Kind, a.Int64 = Int64, converted[int64](decoded[int32](content, width))
	case "<i8":
		a.Kind, a.Int64 = Int64, decoded[int64](content, width)
	default:
		a.Uint8 = content
	}
	return a, nil
}

// decoded returns little-endian numbers of width bytes.
func decoded[N number](content []byte, width int) []N {
	all := make([]N, len(content)/width)
	binary.Decode(content, binary.LittleEndian, all) // cannot fail: the lengths match
	return all
}

func readArray(path string, decode func([]byte) (fileArray, error)) (array fileArray, err error) {
	content, err := disk.Read(path, disk.MaxArray)
	if err == nil {
		if array, err = decode(content); err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}
	return array, err
}

// npyFiles lists inputs and targets to train with, and to test with if they exist.
func npyFiles(directory string) ([]string, error) {
	x, err := locate([]string{directory}, "x.npy")
	if err != nil {
		return parts(directory, "%s_x.npy", "%s_y.npy")
	}
	y, err := locate([]string{directory}, "y.npy")
	return []string{x, y}, err
}

// openNPY reads the files of npyFiles: inputs and targets alternate.
func openNPY(paths []string, o Options) (train, test Dataset, err error) {
	var arrays []fileArray
	for i, path := range paths {
		a, err := readArray(path, decodeNPY)
		if err != nil {
			return nil, nil, err
		}
		if i%2 == 1 {
			a.Array = asTargets(a.Array)
		} else if len(a.Shape) == 2 && a.Kind != Int64 { // rows of numbers become images of one pixel
			a.Shape = append(a.Shape, 1, 1)
		}
		arrays = append(arrays, a)
	}
	if o.Classes == 0 {
		for _, a := range arrays {
			o.Classes = max(o.Classes, classesOf(a.Int64))
		}
	}
	var sets []*arraySet
	for i := 0; i < len(arrays); i += 2 {
		set, err := normalisedSet("npy", o.Classes, arrays[i], arrays[i+1].Array, o.Mean, o.Std)
		if err != nil {
			return nil, nil, fmt.Errorf("%w (in %s and %s)", err, paths[i], paths[i+1])
		}
		sets = append(sets, set)
	}
	return trainAndTest(o, sets)
}

// normalisedSet returns a normalised set of arrays from files.
func normalisedSet(name string, classes int, input fileArray, target Array, mean, std []float64) (*arraySet,
	error) {
	set, err := newArrays(name, classes, input.Array, asTargets(target))
	if err == nil {
		set.input = input
		err = set.normalise(mean, std)
	}
	return set, err
}

// asTargets makes classes Int64, and single numbers rows of one.
func asTargets(y Array) Array {
	switch {
	case y.Kind == Float32 && len(y.Shape) == 1:
		y.Shape = append(y.Shape[:1:1], 1)
	case y.Kind != Float32 && len(y.Shape) == 2 && y.Shape[1] == 1:
		y.Shape = y.Shape[:1]
	}
	if y.Kind == Uint8 {
		y.Kind, y.Int64, y.Uint8 = Int64, converted[int64](y.Uint8), nil
	}
	return y
}

// classic is a data set of labelled images in files with fixed names.
type classic struct {
	name      string
	place     string // directory of its Debian package; may be empty
	archive   string // directory in its archive; may be empty
	fetch     string // where to download it
	mean, std []float64
	classes   []string    // names; nil for digits
	parts     [2][]string // the files to train and to test with
	decode    func(paths []string) (images, labels fileArray, err error)
}

var mnistParts = [2][]string{
	{"train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
	{"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"},
}

// Mean and standard deviation are over all training pixels/255, rounded as in common recipes such
// as PyTorch's examples/mnist/main.py. CIFAR-10 is the binary version
// (https://www.cs.toronto.edu/~kriz/cifar.html). Some recipes take the deviation within each of its
// images, and use the mean over images: 0.2023, 0.1994, 0.2010.
var (
	mnist = classic{
		name: "mnist", fetch: "https://ossci-datasets.s3.amazonaws.com/mnist/",
		mean: []float64{0.1307}, std: []float64{0.3081}, parts: mnistParts, decode: decodeMNIST,
	}
	fashionMNIST = classic{
		name: "fashion-mnist", place: "/usr/share/datasets/fashion-mnist",
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
	return set{classes, "the directory of its files, which are at " + c.fetch, c.place,
		func(o *Options) []arg.Setting { return imageSettings(o, "the set's") }, c.files, c.open}
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
		mean, std := o.normalisation(c.mean, c.std)
		set, err := normalisedSet(c.name, 10, images, labels.Array, mean, std)
		if err != nil {
			return nil, nil, fmt.Errorf("%w (in %s)", err, paths[0])
		}
		set.info.ClassNames = c.classes
		sets, paths = append(sets, set), paths[len(part):]
	}
	return trainAndTest(o, sets)
}

func decodeMNIST(paths []string) (images, labels fileArray, err error) {
	images, wrong := readArray(paths[0], decodeIDX)
	labels, err = readArray(paths[1], decodeIDX)
	if err = cmp.Or(wrong, err); err != nil {
		return images, labels, err
	}
	if s := images.Shape; len(s) != 3 || len(labels.Shape) != 1 || s[1] != 28 || s[2] != 28 {
		return images, labels, fmt.Errorf("%s has the shape %v and the labels %v; want [n 28 28] and [n]",
			paths[0], s, labels.Shape)
	}
	images.Shape = slices.Insert(images.Shape, 1, 1) // a channel
	return images, labels, nil
}

// decodeCIFAR10 reads files of records: a label byte, then 32 x 32 bytes each of red, green and blue.
func decodeCIFAR10(paths []string) (images, labels fileArray, err error) {
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
