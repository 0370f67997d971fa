package data_test

import (
	"bytes"
	"context"
	"encoding/binary"
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
				files[filepath.Join(part, class, fmt.Sprintf("%02d.png", k))] = pngOf(t, picture(12, 9, 10*i+k))
			}
		}
	}
	return directoryOf(t, files)
}

// half normalises to multiples of 2/255 from -1.
var half = []float32{0.5, 0.5, 0.5}

// A picture that has the size is delivered as it is; labels follow the sorted names of directories.
func TestImageFolder(t *testing.T) {
	p := picture(4, 4, 0)
	var jpegged, giffed bytes.Buffer
	must.Do(t, jpeg.Encode(&jpegged, p, nil))
	must.Do(t, gif.Encode(&giffed, p, nil))
	directory := directoryOf(t, map[string][]byte{
		"train/dog/a.png": pngOf(t, p), "train/cat/b.JPG": jpegged.Bytes(), "train/cat/a.gif": giffed.Bytes(),
		"train/dog/notes.txt": nil, "train/.hidden/x": nil, "val/dog/a.png": pngOf(t, p), "test/dog/z.txt": nil,
	})
	train, test, err := data.Open("images", directory, data.Options{Size: 4, Mean: half, Std: half})
	if err != nil {
		t.Fatal(err)
	}
	info := train.Info()
	if train.Len() != 3 || test.Len() != 1 || info.Classes != 2 || !slices.Equal(info.ClassNames, []string{"cat", "dog"}) ||
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
	if got := fill(t, test, 0); !slices.Equal(got.Input.Float32, b.Input.Float32[2*48:]) || got.Target.Int64[0] != 1 {
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
	zero, one := []float32{0}, []float32{1.0 / 255}
	train, _, err := data.Open("images", directory, data.Options{Size: 2, Channels: 1, Mean: zero, Std: one})
	if err != nil {
		t.Fatal(err)
	}
	got := fill(t, train, 0).Input.Float32
	if len(got) != 4 || got[0] < 100 || got[0] > 125 || got[1] < 175 || got[1] > 200 || got[0] != got[2] || got[1] != got[3] {
		t.Errorf("%v, want about 100 and 200 in two rows", got)
	}
	transparent := image.NewNRGBA(image.Rect(0, 0, 2, 2))
	for i := range 4 {
		transparent.SetNRGBA(i%2, i/2, color.NRGBA{R: 200, A: 0})
	}
	directory = directoryOf(t, map[string][]byte{"a/1.png": pngOf(t, transparent), "b/1.png": pngOf(t, transparent)})
	train, _, err = data.Open("images", directory, data.Options{Size: 2, Mean: []float32{0, 0, 0}, Std: []float32{1, 1, 1}})
	if err != nil {
		t.Fatal(err)
	}
	if got := fill(t, train, 0).Input.Float32; slices.Max(got) != 0 {
		t.Errorf("transparent pixels are %v, want black", got)
	}
}

// What a sample is in an epoch follows from the seed, the epoch and its number alone, whatever the
// batch that it is in, what is prefetched, and where the loader began.
func TestPicturesAreTheSameInAnyBatch(t *testing.T) {
	directory := folder(t, 6, ".")
	rapid.Check(t, func(r *rapid.T) {
		o := data.Options{Size: rapid.IntRange(1, 14).Draw(r, "size"), Channels: rapid.SampledFrom([]int{1, 3}).Draw(r, "channels"), Holdout: 0.3,
			Augment: data.Augment{Crop: rapid.IntRange(0, 2).Draw(r, "crop"), Flip: rapid.Bool().Draw(r, "flip"),
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
			l := must.Get(data.NewLoader(set, data.LoaderConfig{BatchSize: batch, Seed: seed, Shuffle: true, Augment: o.Augment, Prefetch: prefetch,
				Start: data.Position{Epoch: epoch}}))(r)
			defer l.Close()
			for range l.Batches() {
				b := must.Get(l.Next(context.Background()))(r)
				all = append(all, b.Input.Float32...)
			}
			return all
		}
		want := read(8, 0)
		if got := read(rapid.IntRange(1, 8).Draw(r, "batch"), rapid.IntRange(0, 2).Draw(r, "prefetch")); !slices.Equal(got, want) {
			r.Fatal("another batch size gives other samples")
		}
	})
}

// Scale shows a picture in parts: other pixels in other epochs, and at least that share of it.
func TestScaleShowsParts(t *testing.T) {
	train, _, err := data.Open("images", folder(t, 2, "."), data.Options{Size: 9, Holdout: 0.1})
	if err != nil {
		t.Fatal(err)
	}
	read := func(scale float64, epoch int) []float32 {
		l := must.Get(data.NewLoader(train, data.LoaderConfig{BatchSize: 3, Seed: 1, Augment: data.Augment{Scale: scale}, Start: data.Position{Epoch: epoch}}))(t)
		b := must.Get(l.Next(t.Context()))(t)
		return b.Input.Float32
	}
	if slices.Equal(read(0.2, 0), read(0.2, 1)) || slices.Equal(read(0.2, 0), read(0, 0)) {
		t.Error("a part is the whole, or the same in two epochs")
	}
	if !slices.Equal(read(0, 0), read(0, 1)) {
		t.Error("without Scale a picture differs between epochs")
	}
}

// A file that is no picture is named when it is read, whatever is wrong with it.
func TestDamagedPicturesAreNamed(t *testing.T) {
	whole := pngOf(t, picture(40, 40, 0))
	huge := slices.Clone(whole)
	copy(huge[16:], []byte{0, 1, 0, 0, 0, 1, 0, 0}) // 65536 x 65536
	binary.BigEndian.PutUint32(huge[29:], crc32.ChecksumIEEE(huge[12:29]))
	for name, content := range map[string][]byte{
		"empty": nil, "text": []byte("no picture"), "cut": whole[:len(whole)/2], "huge": huge, "flipped": append(slices.Clone(whole[:60]), whole[61:]...),
	} {
		directory := directoryOf(t, map[string][]byte{"cat/a.png": content, "dog/a.png": whole, "dog/b.png": whole})
		set, _, err := data.Open("images", directory, data.Options{Size: 4, Holdout: 0.01, Seed: seedThatKeeps(t, directory)})
		if err != nil {
			t.Fatal(err)
		}
		var batch data.Batch
		err = set.Fill(&batch, []int{0, 1})
		if name == "huge" {
			wantError(t, err, "it is 65536 x 65536, and at least a pixel and at most 134217728 are read")
		}
		wantError(t, err, "data: images: ", filepath.Join(directory, "cat/a.png")+": ", "want a PNG, JPEG or GIF that is whole: replace the file, or remove it")
	}
	directory := directoryOf(t, map[string][]byte{"cat/b.png": whole, "dog/a.png": whole})
	pipe := filepath.Join(directory, "cat/a.png")
	must.Do(t, syscall.Mkfifo(pipe, 0o666))
	set, _, err := data.Open("images", directory, data.Options{Size: 4, Seed: seedThatKeeps(t, directory)})
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = data.Split(one, 0.5, 0)
	wantError(t, err, "1 samples; want at least 2")
}
