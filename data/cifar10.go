package data

import (
	"bufio"
	"fmt"
	"io"
	"path/filepath"

	"penstock.example/internal/disk"
)

// CIFAR-10's binary version (https://www.cs.toronto.edu/~kriz/cifar.html) is files of records: a
// byte for the label and 32 x 32 bytes for each of red, green and blue.
const (
	cifarPixels  = 3 * 32 * 32
	cifarClasses = 10
	cifarRecords = 10_000 // in each of the six files
	cifarFetch   = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
)

// Mean and standard deviation of the training pixels of each channel over 255, as the usual recipes
// round them. Some recipes have 0.2023, 0.1994, 0.2010 for the latter: the mean of the images' own
// deviations, which is something else.
var (
	cifarMean = []float32{0.4914, 0.4822, 0.4465}
	cifarStd  = []float32{0.2470, 0.2435, 0.2616}
)

// cifarNames are the names of the classes, as batches.meta.txt has them.
var cifarNames = []string{"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"}

// DecodeCIFAR10 reads the given number of records of CIFAR-10's binary version: images Uint8
// [records, 3, 32, 32] and labels Uint8 [records]. It returns an error if there are fewer bytes or
// more, or if a label is above 9.
func DecodeCIFAR10(r io.Reader, records int) (images, labels Array, err error) {
	buffered := bufio.NewReaderSize(r, 1<<16)
	images.Reset(records, Spec{Uint8, []int64{3, 32, 32}})
	labels.Reset(records, Spec{Kind: Uint8})
	for i := range records {
		label, err := buffered.ReadByte()
		if err == nil && label >= cifarClasses {
			return Array{}, Array{}, fmt.Errorf("the label of record %d, byte %d, is %d, expected 0 to %d",
				i, i*(1+cifarPixels), label, cifarClasses-1)
		}
		n := 0
		if err == nil {
			labels.Uint8[i] = label
			n, err = io.ReadFull(buffered, images.Uint8[i*cifarPixels:][:cifarPixels])
			n++
		}
		if err != nil {
			return Array{}, Array{}, truncated(err, int64(i*(1+cifarPixels)+n), int64(records*(1+cifarPixels)), "records")
		}
	}
	if _, err := buffered.ReadByte(); err == nil {
		return Array{}, Array{}, fmt.Errorf("more bytes follow the expected %d of %d records", records*(1+cifarPixels), records)
	} else if err != io.EOF {
		return Array{}, Array{}, err
	}
	return images, labels, nil
}

// cifarFiles lists the five files to train with, and the one to test with.
func cifarFiles(directory string) ([]string, error) {
	if directory == "" {
		return nil, fmt.Errorf("data: cifar10 has no usual place: name the directory of its files with --data-dir; they are in %s",
			cifarFetch)
	}
	var paths []string
	for _, name := range []string{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
		"data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"} {
		// The archive unpacks into a directory of its own.
		path, err := locate([]string{directory, filepath.Join(directory, "cifar-10-batches-bin")}, name)
		if err != nil {
			return nil, fmt.Errorf("data: cifar10: %w: unpack %s there, or name its directory with --data-dir", err, cifarFetch)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// openCIFAR10 reads the set from files, each of the given number of records.
func openCIFAR10(directory string, o Options, records int) (train, test Dataset, err error) {
	paths, err := cifarFiles(directory)
	if err != nil {
		return nil, nil, err
	}
	last := len(paths) - 1
	if train, err = cifarPart(paths[:last], o, records); err != nil {
		return nil, nil, err
	}
	if test, err = cifarPart(paths[last:], o, records); err != nil {
		return nil, nil, err
	}
	return train, test, nil
}

// cifarPart joins files into a set.
func cifarPart(paths []string, o Options, records int) (*Images, error) {
	var images, labels Array
	images.Reset(len(paths)*records, Spec{Uint8, []int64{3, 32, 32}})
	labels.Reset(len(paths)*records, Spec{Kind: Uint8})
	for i, path := range paths {
		pixels, classes, err := decodeCIFARFile(path, records)
		if err != nil {
			return nil, fmt.Errorf("data: cifar10: %s: %w: get it again from %s", path, err, cifarFetch)
		}
		copy(images.Uint8[i*records*cifarPixels:], pixels.Uint8)
		copy(labels.Uint8[i*records:], classes.Uint8)
	}
	mean, std := o.normalisation(cifarMean, cifarStd)
	set, err := NewImages("cifar10", cifarClasses, images, labels, mean, std)
	if err == nil {
		set.info.ClassNames = cifarNames
	}
	return set, err
}

func decodeCIFARFile(path string, records int) (images, labels Array, err error) {
	file, err := disk.Open(path)
	if err != nil {
		return Array{}, Array{}, err
	}
	defer file.Close() // only read
	return DecodeCIFAR10(file, records)
}
