package data_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/data"
	"penstock.example/internal/must"
)

// picture is an image whose pixels all differ, as far as bytes can.
func picture(width, height, seed int) *image.NRGBA {
	p := image.NewNRGBA(image.Rect(0, 0, width, height))
	for i := range p.Pix {
		p.Pix[i] = byte(i*7 + seed*31)
		if i%4 == 3 {
			p.Pix[i] = 255
		}
	}
	return p
}

func pngOf(t *testing.T, p image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	must.Do(t, png.Encode(&b, p))
	return b.Bytes()
}

// folder is a directory of classes with so many pictures of 12 x 9 each.
func folder(t *testing.T, pictures int, parts ...string) string {
	files := map[string][]byte{}
	for _, part := range parts {
		for i, class := range []string{"cat", "dog"} {
			for k := range pictures {
				files[filepath.Join(part, class, fmt.Sprintf("%02d.png", k))] =
					pngOf(t, picture(12, 9, 10*i+k))
			}
		}
	}
	return directoryOf(t, files)
}

// half normalises to multiples of 2/255 from -1.
var half = []float64{0.5, 0.5, 0.5}

// A picture that has the size is delivered as it is; labels follow the sorted names of directories.
func TestImageFolder(t *testing.T) {
	p := picture(4, 4, 0)
	var jpegged, giffed bytes.Buffer
	must.Do(t, jpeg.Encode(&jpegged, p, nil))
	must.Do(t, gif.Encode(&giffed, p, nil))
	directory := directoryOf(t, map[string][]byte{
		"train/dog/a.png": pngOf(t, p), "train/cat/b.JPG": jpegged.Bytes(), "train/cat/a.gif": giffed.Bytes(),
		"train/dog/notes.txt": nil, "train/.hidden/x": nil, "val/dog/a.png": pngOf(t, p),
		"test/dog/z.txt": nil,
	})
	train, test := open(t, "images", directory, data.Options{Size: 4, Mean: half, Std: half})
	info := train.Info()
	if train.Len() != 3 || test.Len() != 1 || info.Classes != 2 ||
		!slices.Equal(info.ClassNames, []string{"cat", "dog"}) ||
		!slices.Equal(info.Input.Shape, []int64{3, 4, 4}) || info.Task() != data.Classification {
		t.Errorf("%d and %d samples of %+v", train.Len(), test.Len(), info)
	}
	b := fill(t, train, 0, 1, 2)
	if !slices.Equal(b.Target.Int64, []int64{0, 0, 1}) {
		t.Errorf("labels %v", b.Target.Int64)
	}
	for i := range 16 {
		for c := range 3 {
			want := (float32(p.Pix[4*i+c])/255 - 0.5) / 0.5
			if got := b.Input.Float32[2*48+c*16+i]; got != want {
				t.Fatalf("channel %d, pixel %d: %v, want %v", c, i, got, want)
			}
		}
	}
	if got := fill(t, test, 0); !slices.Equal(got.Input.Float32, b.Input.Float32[2*48:]) ||
		got.Target.Int64[0] != 1 {
		t.Error("the same file is another sample in val")
	}
	paths, err := data.Files("images", directory, data.Options{})
	if err != nil || len(paths) != 4 || paths[1] != filepath.Join(directory, "train/cat/b.JPG") {
		t.Errorf("files %v, %v", paths, err)
	}
}

// Pictures are resized by the means of their pixels, from the largest square in the middle.
func TestPicturesAreResized(t *testing.T) {
	p := image.NewGray(image.Rect(0, 0, 16, 8)) // columns 0 to 3 and 12 to 15 are cut off
	for i := range p.Pix {
		switch column := i % 16; {
		case column < 4 || column > 11:
			p.Pix[i] = 255
		case column < 8:
			p.Pix[i] = 100
		default:
			p.Pix[i] = 200
		}
	}
	directory := directoryOf(t, map[string][]byte{"a/1.png": pngOf(t, p), "b/1.png": pngOf(t, p)})
	zero, one := []float64{0}, []float64{1.0 / 255}
	train, _ := open(t, "images", directory, data.Options{Size: 2, Channels: 1, Mean: zero, Std: one})
	got := fill(t, train, 0).Input.Float32
	if len(got) != 4 || got[0] < 100 || got[0] > 125 || got[1] < 175 || got[1] > 200 || got[0] != got[2] ||
		got[1] != got[3] {
		t.Errorf("%v, want about 100 and 200 in two rows", got)
	}
	transparent := image.NewNRGBA(image.Rect(0, 0, 2, 2))
	for i := range 4 {
		transparent.SetNRGBA(i%2, i/2, color.NRGBA{R: 200, A: 0})
	}
	directory = directoryOf(t, map[string][]byte{"a/1.png": pngOf(t, transparent),
		"b/1.png": pngOf(t, transparent)})
	train, _ = open(t, "images", directory,
		data.Options{Size: 2, Mean: []float64{0, 0, 0}, Std: []float64{1, 1, 1}})
	if got := fill(t, train, 0).Input.Float32; slices.Max(got) != 0 {
		t.Errorf("transparent pixels are %v, want black", got)
	}
}

// What a sample is in an epoch follows from the seed, the epoch and its number alone, whatever the
// batch that it is in, what is prefetched, and where the loader began.
func TestPicturesAreTheSameInAnyBatch(t *testing.T) {
	directory := folder(t, 6, ".")
	rapid.Check(t, func(r *rapid.T) {
		o := data.Options{Size: rapid.IntRange(1, 14).Draw(r, "size"),
			Channels: rapid.SampledFrom([]int{1, 3}).Draw(r, "channels"), Holdout: 0.3,
			Augment: data.Augment{Crop: rapid.IntRange(0, 2).Draw(r, "crop"),
				Flip:  rapid.Bool().Draw(r, "flip"),
				Scale: rapid.SampledFrom([]float64{0, 0.08, 0.5, 1}).Draw(r, "scale")}}
		set, test, err := data.Open("images", directory, o)
		if err != nil {
			r.Fatal(err)
		}
		if set.Len() != 8 || test.Len() != 4 {
			r.Fatalf("%d and %d samples", set.Len(), test.Len())
		}
		epoch := rapid.IntRange(0, 3).Draw(r, "epoch")
		seed := rapid.Uint64().Draw(r, "seed")
		read := func(batch, prefetch int) (all []float32) {
			l := must.Get(data.NewLoader(set,
				data.LoaderConfig{BatchSize: batch, Seed: seed, Shuffle: true, Augment: o.Augment,
					Prefetch: prefetch,
					Start:    data.Position{Epoch: epoch}}))(r)
			defer l.Close()
			for range l.Batches() {
				b := must.Get(l.Next(context.Background()))(r)
				all = append(all, b.Input.Float32...)
			}
			return all
		}
		want := read(8, 0)
		if got := read(rapid.IntRange(1, 8).Draw(r, "batch"),
			rapid.IntRange(0, 2).Draw(r, "prefetch")); !slices.Equal(got, want) {
			r.Fatal("another batch size gives other samples")
		}
	})
}

// A file that is no picture is named when it is read, whatever is wrong with it.
func TestDamagedPicturesAreNamed(t *testing.T) {
	whole := pngOf(t, picture(40, 40, 0))
	huge := slices.Clone(whole)
	copy(huge[16:], []byte{0, 1, 0, 0, 0, 1, 0, 0}) // 65536 x 65536
	binary.BigEndian.PutUint32(huge[29:], crc32.ChecksumIEEE(huge[12:29]))
	for name, content := range map[string][]byte{
		"empty": nil, "text": []byte("no picture"), "cut": whole[:len(whole)/2], "huge": huge,
		"flipped": append(slices.Clone(whole[:60]), whole[61:]...),
	} {
		directory := directoryOf(t, map[string][]byte{"cat/a.png": content, "dog/a.png": whole,
			"dog/b.png": whole})
		set, _ := open(t, "images", directory,
			data.Options{Size: 4, Holdout: 0.01, Seed: seedThatKeeps(t, directory)})
		var batch data.Batch
		err := set.Fill(&batch, []int{0, 1})
		if name == "huge" {
			wantError(t, err, "it is 65536 x 65536, and at least a pixel and at most 67108864 are read")
		}
		wantError(t, err, "data: images: ", filepath.Join(directory, "cat/a.png")+": ",
			"want a PNG, JPEG or GIF that is whole: replace the file, or remove it")
	}
	directory := directoryOf(t, map[string][]byte{"cat/b.png": whole, "dog/a.png": whole})
	pipe := filepath.Join(directory, "cat/a.png")
	must.Do(t, syscall.Mkfifo(pipe, 0o666))
	set, _ := open(t, "images", directory, data.Options{Size: 4, Seed: seedThatKeeps(t, directory)})
	var batch data.Batch
	wantError(t, set.Fill(&batch, []int{0, 1}), pipe, "named pipe")
	must.Do(t, os.Remove(pipe))
	wantError(t, set.Fill(&batch, []int{0, 1}), pipe, "no such file")
}

// seedThatKeeps is a seed by which the first sample of three is one to train with.
func seedThatKeeps(t *testing.T, directory string) uint64 {
	for seed := range uint64(100) {
		if data.Permutation(3, seed, 0)[0] != 0 {
			return seed
		}
	}
	t.Fatal("no seed for " + directory)
	return 0
}

// A split has every sample once, and at least one in each part.
func TestSplit(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.IntRange(2, 50).Draw(r, "samples")
		share := rapid.Float64Range(0.001, 0.999).Draw(r, "share")
		set, _, err := data.Synthetic{Train: n, Width: 1, Height: 1}.Open()
		if err != nil {
			r.Fatal(err)
		}
		train, test, err := data.Split(set, share, rapid.Uint64().Draw(r, "seed"))
		if err != nil {
			r.Fatal(err)
		}
		values := func(set data.Dataset) (all []float32) {
			var b data.Batch
			for i := range set.Len() {
				must.Do(r, set.Fill(&b, []int{i}))
				all = append(all, b.Input.Float32...)
			}
			return all
		}
		both := append(values(train), values(test)...)
		want := values(set)
		slices.Sort(both)
		slices.Sort(want)
		if !slices.Equal(both, want) || train.Len() == 0 || test.Len() == 0 {
			r.Fatalf("%d and %d of %d samples", train.Len(), test.Len(), n)
		}
		var b data.Batch
		if err := test.Fill(&b, []int{test.Len()}); err == nil {
			r.Fatal("a sample that there is not")
		}
	})
	one, _, err := data.Synthetic{Train: 1}.Open()
	must.Do(t, err)
	_, _, err = data.Split(one, 0.5, 0)
	wantError(t, err, "1 samples; want at least 2")
}

// numbered returns n equal images of one 3 x 4 channel whose pixels are 1 to 12, black being 0.
func numbered(t *testing.T, n int) data.Dataset {
	t.Helper()
	images := data.Array{Kind: data.Uint8, Shape: []int64{int64(n), 1, 3, 4}}
	for range n {
		for pixel := range uint8(12) {
			images.Uint8 = append(images.Uint8, pixel+1)
		}
	}
	labels := data.Array{Kind: data.Uint8, Shape: []int64{int64(n)}, Uint8: make([]uint8, n)}
	set := must.Get(data.NewImages("numbered", 2, images, labels, []float64{0}, []float64{1.0 / 255}))(t)
	return set
}

// epochOf returns every image of an epoch, in the data set's order.
func epochOf(t *testing.T, set data.Dataset, c data.LoaderConfig) [][]float32 {
	t.Helper()
	size := set.Info().Input.Size()
	var images [][]float32
	for _, batch := range deliver(t, set, c, -1) {
		images = slices.AppendSeq(images, slices.Chunk(batch.Input.Float32, size))
	}
	return images
}

func rounded(image []float32) string {
	var pixels []int
	for _, x := range image {
		pixels = append(pixels, int(x+0.5))
	}
	return fmt.Sprint(pixels)
}

func TestCrop(t *testing.T) {
	counts := map[string]int{}
	for _, image := range epochOf(t, numbered(t, 900),
		data.LoaderConfig{BatchSize: 100, Augment: data.Augment{Crop: 1}}) {
		counts[rounded(image)]++
	}
	// By one pixel either way and each direction: nine images, some of which are drawn here.
	for _, want := range []string{
		"[1 2 3 4 5 6 7 8 9 10 11 12]",
		"[0 0 0 0 0 1 2 3 0 5 6 7]",    // down and right
		"[6 7 8 0 10 11 12 0 0 0 0 0]", // up and left
		"[2 3 4 0 6 7 8 0 10 11 12 0]", // left
	} {
		if counts[want] < 60 { // 100 each, with a deviation of 9
			t.Errorf("%s comes out %d times of 900", want, counts[want])
		}
	}
	if len(counts) != 9 {
		t.Errorf("%d different images come out, want 9: %v", len(counts), counts)
	}
}

// An image is mirrored after it was cropped: one that is both is the mirror image of what the crop
// alone, of the same seed, makes of it.
func TestFlipComesAfterCrop(t *testing.T) {
	set := numbered(t, 200)
	cropped := epochOf(t, set, data.LoaderConfig{BatchSize: 50, Seed: 3, Augment: data.Augment{Crop: 1}})
	both := epochOf(t, set, data.LoaderConfig{BatchSize: 50, Seed: 3,
		Augment: data.Augment{Crop: 1, Flip: true}})
	flipped := 0
	for i, image := range both {
		mirrored := slices.Clone(cropped[i])
		for row := range slices.Chunk(mirrored, 4) {
			slices.Reverse(row)
		}
		switch rounded(image) {
		case rounded(cropped[i]):
		case rounded(mirrored):
			flipped++
		default:
			t.Fatalf("image %d: cropped %s, cropped and flipped %s", i, rounded(cropped[i]), rounded(image))
		}
	}
	if flipped < 60 { // 100, with a deviation of 7
		t.Errorf("%d of 200 images are mirrored", flipped)
	}
}

// npyFile is a file of NumPy of little-endian numbers.
func npyFile(t testing.TB, descr string, numbers any, shape ...int64) string {
	t.Helper()
	return file(t, "x.npy", npyOf(descr, numbers, shape...))
}

func file(t testing.TB, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.Do(t, os.WriteFile(path, content, 0o666))
	return path
}

// grey writes a picture of these pixels.
func grey(t testing.TB, name string, width int, pixels ...uint8) string {
	t.Helper()
	picture := image.NewGray(image.Rect(0, 0, width, len(pixels)/width))
	copy(picture.Pix, pixels)
	var b bytes.Buffer
	must.Do(t, png.Encode(&b, picture))
	return file(t, name, b.Bytes())
}

func inputs(t testing.TB, info data.Info, paths ...string) *data.Inputs {
	t.Helper()
	text := must.Get(json.Marshal(info))(t)
	var read data.Info
	must.Do(t, json.Unmarshal(text, &read))
	x := must.Get(data.NewInputs(read, nil, paths))(t)
	return x
}

// An image of a set, as a picture and as an array, is the input that the set itself makes of it.
func TestInputsAreTheSets(t *testing.T) {
	pixels := []uint8{0, 51, 102, 255, 7, 9, 11, 13}
	images := must.Get(data.NewImages("images", 2, bytesOf([]int64{2, 1, 2, 2}, pixels...),
		bytesOf([]int64{2}, 0, 1), []float64{0.25}, []float64{0.5}))(t)
	compareInputs(t, images, grey(t, "0.png", 2, pixels[:4]...), grey(t, "1.png", 2, pixels[4:]...))
	compareInputs(t, images, npyFile(t, "|u1", pixels, 2, 1, 2, 2))
	plain := must.Get(data.FromSlices(pixels, []int64{1, 2, 2}, []int{0, 1}))(t)
	compareInputs(t, plain, grey(t, "0.png", 2, pixels[:4]...), grey(t, "1.png", 2, pixels[4:]...))
	compareInputs(t, plain, npyFile(t, "|u1", pixels[:4], 2, 2), npyFile(t, "|u1", pixels[4:], 1, 2, 2))
	numbers := []float32{1, 2, 3, 4, 5, 6}
	set := must.Get(data.FromSlices(numbers, []int64{3}, []float32{1, 2}))(t)
	compareInputs(t, set, npyFile(t, "<f4", numbers, 2, 3))
	path := file(t, "x.csv", []byte("1,2,a\n3,5,b\n4,9,a\n6,1,b\n"))
	train, _ := open(t, "csv", path,
		data.Options{CSV: data.CSV{Standardise: true}, Holdout: 0.25, Seed: 1})
	kept := fill(t, train, 0, 1, 2).Input.Float32
	all := inputs(t, train.Info(), npyFile(t, "<f4", []float32{1, 2, 3, 5, 4, 9, 6, 1}, 4, 2))
	made, found := fill(t, all, 0, 1, 2, 3).Input.Float32, 0
	for row := range slices.Chunk(made, 2) {
		for other := range slices.Chunk(kept, 2) {
			if slices.Equal(row, other) {
				found++
			}
		}
	}
	if found != 3 {
		t.Errorf("%d of the 3 rows to train with are among the inputs: %v and %v", found, kept, made)
	}
}

func compareInputs(t *testing.T, set data.Dataset, paths ...string) {
	t.Helper()
	x := inputs(t, set.Info(), paths...)
	if x.Len() != 2 || !slices.Equal(fill(t, x, 0, 1).Input.Float32, fill(t, set, 0, 1).Input.Float32) {
		t.Errorf("%d inputs: %v; want %v", x.Len(), fill(t, x, 0, 1).Input, fill(t, set, 0, 1).Input)
	}
	path, row := x.Source(1)
	if path != paths[len(paths)-1] || row != 2-len(paths) {
		t.Errorf("input 1 is row %d of %s", row, path)
	}
}

// Of a text the last bytes count; what is missing is zeros, and Length says so.
func TestInputsOfTokens(t *testing.T) {
	text := must.Get(data.NewText("0123456789", 4))(t)
	x := inputs(t, text.Info(), file(t, "a.txt", []byte("abcdefg")), file(t, "b.txt", []byte("xy")),
		npyFile(t, "<i8", []int64{3, 200}, 2, 1))
	want := []int64{'d', 'e', 'f', 'g', 'x', 'y', 0, 0, 3, 0, 0, 0, 200, 0, 0, 0}
	if got := fill(t, x, 0, 1, 2, 3); !slices.Equal(got.Input.Int64, want) {
		t.Errorf("%v; want %v", got.Input.Int64, want)
	}
	for i, want := range []int{4, 2, 1, 1} {
		if got := x.Length(i); got != want {
			t.Errorf("input %d has %d tokens; want %d", i, got, want)
		}
	}
}

// Each refusal names the file, what is there and what is wanted.
func TestInputsRefuses(t *testing.T) {
	images := data.Info{Name: "images", Classes: 2,
		Input: data.Spec{Kind: data.Float32, Shape: []int64{1, 2, 2}}, Source: data.Uint8}
	numbers := data.Info{Name: "npy", Classes: 2, Input: data.Spec{Kind: data.Float32, Shape: []int64{3}},
		Source: data.Float32}
	tokens := data.Info{Name: "tokens", Classes: 9, Input: data.Spec{Kind: data.Int64, Shape: []int64{4}},
		Source: data.Int64}
	whole := must.Get(os.ReadFile(grey(t, "a.png", 2, 1, 2, 3, 4)))(t)
	for _, row := range []struct {
		info  data.Info
		path  string
		parts []string
	}{
		{images, "none.png", []string{"none.png: no such file"}},
		{images, t.TempDir(), []string{"not a regular file but a directory"}},
		{images, file(t, "a.png", nil), []string{"a.png: it is empty"}},
		{images, file(t, "a.png", []byte("hello")),
			[]string{"a.png: image: unknown format; want a PNG, JPEG or GIF that is whole, or an .npy of " +
				"uint8 [1 2 2]"}},
		{images, file(t, "a.png", whole[:20]), []string{"a.png: ", "want a PNG"}},
		{images, npyFile(t, "<f4", make([]float32, 4), 1, 2, 2),
			[]string{"x.npy: it is float32 [1 2 2]; want an .npy of uint8 [1 2 2], or with a dimension " +
				"more in front"}},
		{images, npyFile(t, "|u1", make([]uint8, 6), 3, 2), []string{"x.npy: it is uint8 [3 2]; want"}},
		{numbers, file(t, "a.txt", []byte("hello")),
			[]string{"a.txt: it is no file of NumPy; want an .npy of float32 [3]"}},
		{numbers, npyFile(t, "<f4", make([]float32, 8), 2, 4), []string{"x.npy: it is float32 [2 4]; want"}},
		{numbers, file(t, "a.npy", []byte("\x93NUMPY\x01")), []string{"a.npy: "}},
		{tokens, npyFile(t, "<i8", []int64{1, 2, 8, 9}, 2, 2),
			[]string{"x.npy: token 1 of row 1 is 9; want 0 to 8: the model was trained with other tokens"}},
		{tokens, npyFile(t, "<i8", []int64{-1}, 1), []string{"token 0 of row 0 is -1"}},
		{tokens, file(t, "a.txt", []byte("hello")),
			[]string{"a.txt: it is no file of NumPy; want an .npy of int64 [n t], tokens from 0 to 8"}},
	} {
		_, err := data.NewInputs(row.info, nil, []string{row.path})
		wantError(t, err, append(row.parts, "data: inputs: ")...)
	}
	// what only decoding shows
	var b bytes.Buffer
	picture := image.NewRGBA(image.Rect(0, 0, 64, 64))
	for i := range 64 * 64 {
		picture.Set(i%64, i/64, color.RGBA{uint8(i * i), uint8(i * 7), uint8(i >> 3), 255})
	}
	must.Do(t, png.Encode(&b, picture))
	path := file(t, "cut.png", b.Bytes()[:b.Len()/2])
	x := inputs(t, images, grey(t, "a.png", 2, 1, 2, 3, 4), path)
	var batch data.Batch
	wantError(t, x.Fill(&batch, []int{0, 1}), path, "want a PNG, JPEG or GIF that is whole")
	if _, err := data.NewInputs(images, nil, nil); err == nil {
		t.Error("no files are taken")
	}
	if _, err := data.NewInputs(data.Info{Input: data.Spec{Shape: []int64{0}}}, nil,
		[]string{path}); err == nil {
		t.Error("a description of nothing is taken")
	}
}
