package data

import (
	"maps"
	"penstock.example/internal/arg"
	"slices"
)

// Options adjust what Open returns. The zero value is each set's usual form.
type Options struct {
	// Mean and Std replace the numbers by which images are normalised, one per channel, pixels
	// being in [0, 1]. Nil keeps those of the set's training images, and ImageNet's for images. Sets
	// that are not read from images ignore them.
	Mean, Std []float32

	// Size is the height and width that pictures are resized to. 0 means 224.
	Size int

	// Channels is 3 for pictures in colour, 1 for their brightness. 0 means 3.
	Channels int

	// Classes is how many classes npy and tokens have. 0 means one more than the greatest that is in
	// the files.
	Classes int

	// TokenBytes is the width of a token in a file, 2 or 4. 0 means 2.
	TokenBytes int

	// CSV says how files of rows are read.
	CSV CSV

	// Augment is how images to train with are changed. Open checks it against the set, and it is
	// for the caller to give to the Loader.
	Augment Augment

	// Window is the length of a sample of text in bytes, or in tokens. 0 means 128.
	Window int

	// Tokenizer is where the tokenizer is that makes tokens of text, as tokenizer.Open takes it. ""
	// leaves the text's bytes.
	Tokenizer string
	// OnText is told how many bytes of how many have become tokens, while Open makes tokens of text. Nil is
	// nobody.
	OnText func(done, all int)

	// Holdout is the share of a set without a part to test with that is kept for testing: of texts
	// and tokens the end, of other sets samples that are drawn by Seed. 0 means 0.1.
	Holdout float64
	Seed    uint64

	// Like describes the samples that a model was trained on, for others to be made as those: images are
	// normalised by its Mean and Std where Mean and Std are nil, rows of numbers are standardised by them
	// whatever CSV says, columns of a csv with a header are found by its Columns, and its task, its class
	// names and how many classes there are hold where they are not given, and another Tokenizer than its own is
	// refused. Nil is none.
	Like *Info

	// Synthetic describes the set named synthetic.
	Synthetic Synthetic
}

// normalisation returns the mean and the standard deviation to use in place of a set's own: those that are
// given, or those of Like.
func (o Options) normalisation(mean, std []float32) ([]float32, []float32) {
	if like := o.Like; like != nil && like.Source == Uint8 && like.Mean != nil && len(like.Mean) == len(mean) {
		mean, std = like.Mean, like.Std
	}
	if o.Mean != nil {
		mean = o.Mean
	}
	if o.Std != nil {
		std = o.Std
	}
	return mean, std
}

// set is a data set that Open knows.
type set struct {
	tasks    []Task                                              // that it may have
	settings []setting                                           // of its Options, for Set
	files    func(directory string, o Options) ([]string, error) // those that open reads
	open     func(directory string, o Options) (train, test Dataset, err error)
}

var sets = map[string]set{
	"mnist":         {tasks: classes, settings: imageSettings, files: always(mnist.files), open: mnist.open},
	"fashion-mnist": {tasks: classes, settings: imageSettings, files: always(fashionMNIST.files), open: fashionMNIST.open},
	"images":        {tasks: classes, settings: folderSettings, files: always(folderFiles), open: openFolder},
	"cifar10": {tasks: classes, settings: imageSettings, files: always(cifarFiles), open: func(directory string, o Options) (train, test Dataset, err error) {
		return openCIFAR10(directory, o, cifarRecords)
	}},
	"npy":    {tasks: []Task{Classification, Regression, Segmentation, NextToken}, settings: npySettings, files: always(npyFiles), open: openNPY},
	"csv":    {tasks: []Task{Classification, Regression}, settings: csvSettings, files: always(csvFiles), open: openCSV},
	"tokens": {tasks: []Task{NextToken}, settings: tokenSettings, files: always(tokenFiles), open: openTokens},
	"text":   {tasks: []Task{NextToken}, settings: textSettings, files: openedFiles, open: openText},
	"synthetic": {
		tasks:    []Task{Classification, Segmentation, NextToken},
		settings: syntheticSettings,
		files:    func(string, Options) ([]string, error) { return nil, nil },
		open: func(_ string, o Options) (train, test Dataset, err error) {
			return o.Synthetic.Open()
		},
	},
}

// always lists the same files whatever the options.
func always(files func(string) ([]string, error)) func(string, Options) ([]string, error) {
	return func(directory string, _ Options) ([]string, error) { return files(directory) }
}

// classes is the task of sets of labelled samples.
var classes = []Task{Classification}

// Names returns the names that Open knows, sorted.
func Names() []string { return slices.Sorted(maps.Keys(sets)) }

// Open reads a data set by its name, to train and to test with, from the files in directory:
//
//	mnist          train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte,
//	               plain or with .gz
//	fashion-mnist  the same names; directory may be "" where Debian's dataset-fashion-mnist is installed
//	cifar10        data_batch_1.bin to data_batch_5.bin and test_batch.bin, or cifar-10-batches-bin with them in it
//	images         DIR/train/CLASS/*.png, .jpg, .jpeg, .gif and DIR/val/CLASS, or DIR/test/CLASS; or DIR/CLASS
//	npy            x.npy and y.npy, or train_x.npy, train_y.npy, test_x.npy, test_y.npy (or val_): see NewArrays for what
//	               they may be; rows of numbers are images of one pixel, [k 1 1]
//	csv            a file, or a directory with train.csv and test.csv, or val.csv: see CSV
//	tokens         a file of little-endian uint16 or uint32, or a directory with train.bin and val.bin, or test.bin
//	text           a file, or a directory whose .txt files are taken in the order of their names; as bytes, or as tokens of
//	               Options.Tokenizer, which does not merge over the end of a file
//	synthetic      no file: directory is ignored
//
// Nothing is downloaded. Only regular files are read, and of text at most MaxText bytes. Pictures
// are read when they are asked for: Open finds them, and Fill returns the error of one that is
// damaged. So are tokens. Any other set is read and checked as a whole before Open returns. An error names the file, what was found, what was
// expected and where to get it, and is fs.ErrNotExist if a file is missing.
func Open(name, directory string, o Options) (train, test Dataset, err error) {
	s, err := find(name)
	if err != nil {
		return nil, nil, err
	}
	if train, test, err = s.open(directory, o); err != nil {
		return nil, nil, err
	}
	if err := o.Augment.check("data: "+name, train); err != nil {
		return nil, nil, err
	}
	return train, test, nil
}

// Files lists the files that Open reads, so that none of them is written to. It returns an error if
// one is missing.
func Files(name, directory string, o Options) ([]string, error) {
	s, err := find(name)
	if err != nil {
		return nil, err
	}
	return s.files(directory, o)
}

// Tasks lists what a data set may ask of a model. Which of them it is, follows from its files and
// its options; Info.Task says it.
func Tasks(name string) ([]Task, error) {
	s, err := find(name)
	return slices.Clone(s.tasks), err
}

func find(name string) (set, error) {
	s, ok := sets[name]
	if !ok {
		return set{}, &ConfigError{Of: "data", Field: "Data", Value: name, Remedy: arg.OneOf(name, Names())}
	}
	return s, nil
}
