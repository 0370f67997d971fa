package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"penstock.example/internal/disk"
)

// File is an open file, or several, with an index in memory. Read reads no more than one tensor. Its methods
// may be called concurrently.
type File struct {
	path     string
	sources  []io.ReaderAt // files, to close
	spans    []span        // sorted by name
	metadata map[string]string
}

// span is a tensor and its range of bytes in a file.
type span struct {
	Tensor
	source     io.ReaderAt
	begin, end int64
}

// Open reads the header of the regular file at path, and checks that its tensors fill the file exactly.
// A path that ends in .index.json is the index of several files beside it, as Hugging Face writes large
// models. The caller closes the File.
func Open(path string) (*File, error) {
	open := openFile
	if strings.HasSuffix(path, ".index.json") {
		open = openIndex
	}
	file, err := open(path)
	if err != nil {
		return nil, disk.Short(fmt.Errorf("safetensors: %s: %w", path, err))
	}
	file.path = path
	return file, nil
}

func openFile(path string) (*File, error) {
	source, err := disk.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := source.Stat()
	var file *File
	if err == nil {
		file, err = newFile(source, info.Size())
	}
	if err != nil {
		return nil, errors.Join(err, source.Close())
	}
	return file, nil
}

// openIndex opens the files of an index, {"weight_map": {"NAME": "FILE"}}. Other tensors in them are ignored.
func openIndex(path string) (*File, error) {
	var index struct {
		Files map[string]string `json:"weight_map"`
	}
	content, err := disk.Read(path, disk.MaxJSON)
	if err == nil {
		err = json.Unmarshal(content, &index)
	}
	if err == nil && len(index.Files) == 0 {
		err = errors.New("it names no files; want the weight_map of a model in several files")
	}
	if err != nil {
		return nil, err
	}
	whole := &File{}
	for _, name := range slices.Compact(slices.Sorted(maps.Values(index.Files))) {
		var file *File
		if !filepath.IsLocal(name) {
			err = errors.New("want files beside it")
		} else {
			file, err = openFile(filepath.Join(filepath.Dir(path), name))
		}
		if err != nil {
			err = fmt.Errorf("its file %s: %w", name, err)
			break
		}
		whole.sources = append(whole.sources, file.sources...)
		for _, s := range file.spans {
			if index.Files[s.Name] == name {
				whole.spans = append(whole.spans, s)
				delete(index.Files, s.Name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(index.Files)) {
		err = cmp.Or(err, fmt.Errorf("tensor %q is not in %s; want all files of one model", name,
			index.Files[name]))
	}
	if err != nil {
		return nil, errors.Join(err, whole.Close())
	}
	slices.SortFunc(whole.spans, func(a, b span) int { return cmp.Compare(a.Name, b.Name) })
	return whole, nil
}

// newFile is openFile for a source of size bytes.
func newFile(source io.ReaderAt, size int64) (*File, error) {
	header, err := readHeader(source, size)
	if err != nil {
		return nil, err
	}
	file := &File{sources: []io.ReaderAt{source}}
	if file.spans, file.metadata, err = parseHeader(header); err != nil {
		return nil, fmt.Errorf("the header: %w", err)
	}
	data := lengthSize + int64(len(header)) // its offset
	err = checkTiling(file.spans, size-data)
	for i := range file.spans {
		s := &file.spans[i]
		s.source, s.begin, s.end = source, s.begin+data, s.end+data
	}
	return file, err
}

// readHeader reads the header without its length. It checks the length before it allocates memory.
func readHeader(source io.ReaderAt, size int64) ([]byte, error) {
	var prefix [lengthSize]byte
	if err := readAt(source, prefix[:], 0); err != nil {
		return nil, fmt.Errorf("reading the header's length: %w", err)
	}
	length, left := binary.LittleEndian.Uint64(prefix[:]), uint64(size-lengthSize)
	if length > min(maxHeader, left) {
		// A file of torch.save is a zip, or before 1.6 a pickle of version 2 to 5.
		if bytes.HasPrefix(prefix[:], []byte("PK\x03\x04")) || prefix[0] == 0x80 && prefix[1] >= 2 &&
			prefix[1] <= 5 {
			return nil, errors.New("it is a file of PyTorch; want the state_dict that it holds, as " +
				"safetensors.torch.save_file(state, FILE) writes it")
		}
		return nil, fmt.Errorf("the header's length is %d; want at most %d, and no more than the %d bytes "+
			"that follow: it is truncated, or another kind of file", length, maxHeader, left)
	}
	header := make([]byte, length)
	if err := readAt(source, header, lengthSize); err != nil {
		return nil, fmt.Errorf("reading the header: %w", err)
	}
	return header, nil
}

// parseHeader returns the header's tensors sorted by name, with offsets in the data, and its
// metadata or nil. The JSON reader refuses duplicate and unknown names, names in another case, and
// invalid UTF-8.
func parseHeader(header []byte) (spans []span, metadata map[string]string, err error) {
	var members map[string]jsontext.Value
	if err := json.Unmarshal(bytes.TrimRight(header, " "), &members); err != nil {
		return nil, nil, err
	}
	if len(members) > disk.MaxTensors {
		return nil, nil, fmt.Errorf("it has %d tensors; want at most %d", len(members), disk.MaxTensors)
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		var e entry
		if name == metadataKey {
			err = json.Unmarshal(members[name], &metadata)
		} else {
			err = json.Unmarshal(members[name], &e, json.RejectUnknownMembers(true))
		}
		var size int64
		switch {
		case err != nil:
		case name == metadataKey:
			continue
		case e.DType == "" || e.Shape == nil || len(e.Offsets) != 2:
			err = errors.New("want dtype, shape and two data_offsets")
		default:
			s := span{Tensor{Name: name, DType: e.DType, Shape: e.Shape}, nil, e.Offsets[0], e.Offsets[1]}
			if size, err = s.Size(); s.DType.Size() == 0 { // unknown: an error when it is read
				size, err = max(0, s.end-s.begin), nil
			}
			if err == nil && (s.begin < 0 || size != s.end-s.begin) {
				err = fmt.Errorf("shape %v of %s takes %d bytes, not data_offsets [%d %d]", s.Shape, s.DType,
					size, s.begin, s.end)
			}
			spans = append(spans, s)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", name, err)
		}
	}
	return spans, metadata, nil
}

// checkTiling returns an error unless the spans cover the size bytes of data, each byte once.
func checkTiling(spans []span, size int64) error {
	spans = slices.Clone(spans)
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	covered := int64(0)
	for _, s := range spans {
		if s.begin != covered || s.end > size {
			return fmt.Errorf("tensor %q: data_offsets [%d %d]; want them from %d on, and at most the %d "+
				"bytes of data in the file: it is truncated, or damaged",
				s.Name, s.begin, s.end, covered, size)
		}
		covered = s.end
	}
	if covered < size {
		return fmt.Errorf("%d bytes follow the last tensor; want the end of the file", size-covered)
	}
	return nil
}

// Tensors returns the tensors sorted by name. Their Load reads them from the file.
func (f *File) Tensors() []Tensor {
	tensors := make([]Tensor, len(f.spans))
	for i, s := range f.spans {
		tensors[i] = s.Tensor
		tensors[i].Shape = slices.Clone(s.Shape)
		tensors[i].Load = func(write func([]byte) error) error {
			t, err := f.Read(s.Name)
			if err != nil {
				return err
			}
			return write(t.Data)
		}
	}
	return tensors
}

// Metadata returns a copy of the file's metadata, or nil.
func (f *File) Metadata() map[string]string { return maps.Clone(f.metadata) }

// Read reads the named tensor. Its Data is a new slice.
func (f *File) Read(name string) (Tensor, error) {
	i, found := sort.Find(len(f.spans), func(i int) int { return cmp.Compare(name, f.spans[i].Name) })
	if !found {
		return Tensor{}, fmt.Errorf("safetensors: %s: no tensor %q among %d", f.path, name, len(f.spans))
	}
	s := f.spans[i]
	data := make([]byte, s.end-s.begin)
	err := readAt(s.source, data, s.begin)
	if err == nil {
		err = s.checkData(data)
	}
	if err != nil {
		return Tensor{}, disk.Short(fmt.Errorf("safetensors: %s: tensor %q: bytes %d to %d: %w", f.path, name,
			s.begin, s.end, err))
	}
	t := s.Tensor
	t.Shape, t.Data = slices.Clone(s.Shape), data
	return t, nil
}

// Close closes the file. Tensors already read stay valid; Read fails afterwards.
func (f *File) Close() (err error) {
	for _, s := range f.sources {
		err = errors.Join(err, s.(io.Closer).Close())
	}
	return err
}

// readAt fills buffer from offset. It returns an error if the source ends early.
func readAt(source io.ReaderAt, buffer []byte, offset int64) error {
	_, err := io.ReadFull(io.NewSectionReader(source, offset, int64(len(buffer))), buffer)
	return err
}
