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
	parts    []*part
	spans    []span // sorted by name
	metadata map[string]string
}

// part is a file of tensors.
type part struct {
	source io.ReaderAt
	closer io.Closer // nil in tests
	data   int64     // offset of the data in the file
}

// span is a tensor and its range of bytes in a part's data.
type span struct {
	Tensor
	part       *part
	begin, end int64
}

// Open reads the header of the regular file at path, and checks that its tensors fill the file exactly. If path
// ends in .index.json, it is the index of several files beside it, as Hugging Face writes large models. The
// caller closes the File.
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
		source.Close()
		return nil, err
	}
	file.parts[0].closer = source
	return file, nil
}

// openIndex opens the files of an index, {"weight_map": {"NAME": "FILE"}}. Other tensors in them are ignored.
func openIndex(path string) (*File, error) {
	content, err := disk.Read(path, disk.MaxJSON)
	if err != nil {
		return nil, err
	}
	var index struct {
		Files map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(content, &index); err != nil {
		return nil, err
	}
	if len(index.Files) == 0 {
		return nil, errors.New("it names no files; want the weight_map of a model in several files")
	}
	whole := &File{}
	for _, name := range slices.Compact(slices.Sorted(maps.Values(index.Files))) {
		if !filepath.IsLocal(name) {
			return nil, errors.Join(fmt.Errorf("it names the file %q; want files beside it", name), whole.Close())
		}
		file, err := openFile(filepath.Join(filepath.Dir(path), name))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", name, err), whole.Close())
		}
		whole.parts = append(whole.parts, file.parts...)
		for _, s := range file.spans {
			if index.Files[s.Name] == name {
				whole.spans = append(whole.spans, s)
				delete(index.Files, s.Name)
			}
		}
	}
	for name, file := range index.Files {
		return nil, errors.Join(fmt.Errorf("tensor %q is not in %s; want all files of one model", name, file),
			whole.Close())
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
	file := &File{parts: []*part{{source: source, data: lengthSize + int64(len(header))}}}
	if err := file.parseHeader(header); err != nil {
		return nil, fmt.Errorf("the header: %w", err)
	}
	return file, checkTiling(file.spans, size-file.parts[0].data)
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

// parseHeader reads the header's tensors and its metadata. The JSON reader refuses duplicate and unknown names,
// names in another case, and invalid UTF-8. A tensor of an unknown dtype is an error when it is read.
func (f *File) parseHeader(header []byte) error {
	d := jsontext.NewDecoder(bytes.NewBuffer(header))
	if kind := d.PeekKind(); kind != '{' {
		return cmp.Or(d.SkipValue(), fmt.Errorf("it is JSON %s; want an object", kind))
	}
	_, err := d.ReadToken()
	for err == nil && d.PeekKind() != '}' {
		var name jsontext.Token
		if name, err = d.ReadToken(); err != nil {
			break
		}
		if len(f.spans) == disk.MaxTensors {
			return fmt.Errorf("it has more than %d tensors", disk.MaxTensors)
		}
		s := span{Tensor: Tensor{Name: name.String()}, part: f.parts[0]}
		if s.Name == metadataKey {
			err = json.UnmarshalDecode(d, &f.metadata)
		} else if err = s.parse(d); err == nil {
			f.spans = append(f.spans, s)
		}
		if err != nil {
			return fmt.Errorf("tensor %q: %w", s.Name, err)
		}
	}
	if err == nil {
		_, err = d.ReadToken()
	}
	if err == nil {
		if _, err = d.ReadToken(); err == nil {
			err = errors.New("more follows after the JSON")
		} else if err == io.EOF {
			err = nil
		}
	}
	slices.SortFunc(f.spans, func(a, b span) int { return cmp.Compare(a.Name, b.Name) })
	return err
}

// parse reads a tensor's value in the header.
func (s *span) parse(d *jsontext.Decoder) error {
	var e struct {
		DType   DType   `json:"dtype"`
		Shape   []int64 `json:"shape"`
		Offsets []int64 `json:"data_offsets"`
	}
	if err := json.UnmarshalDecode(d, &e, json.RejectUnknownMembers(true)); err != nil {
		return err
	}
	if e.DType == "" || e.Shape == nil || len(e.Offsets) != 2 {
		return errors.New("want dtype, shape and two data_offsets")
	}
	s.DType, s.Shape, s.begin, s.end = e.DType, e.Shape, e.Offsets[0], e.Offsets[1]
	size, err := s.Size()
	if s.DType.Size() == 0 {
		size, err = s.end-s.begin, nil
	}
	if err == nil && (s.begin < 0 || s.end < s.begin || size != s.end-s.begin) {
		err = fmt.Errorf("shape %v of %s takes %d bytes, not data_offsets [%d %d]", s.Shape, s.DType, size,
			s.begin, s.end)
	}
	return err
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

// Tensors returns the tensors sorted by name, without data.
func (f *File) Tensors() []Tensor {
	tensors := make([]Tensor, len(f.spans))
	for i, s := range f.spans {
		tensors[i] = s.Tensor
		tensors[i].Shape = slices.Clone(s.Shape)
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
	from := s.part.data + s.begin
	data := make([]byte, s.end-s.begin)
	err := readAt(s.part.source, data, from)
	if err == nil {
		err = s.checkData(data)
	}
	if err != nil {
		return Tensor{}, disk.Short(fmt.Errorf("safetensors: %s: tensor %q: bytes %d to %d: %w", f.path, name,
			from, s.part.data+s.end, err))
	}
	t := s.Tensor
	t.Shape, t.Data = slices.Clone(s.Shape), data
	return t, nil
}

// Close closes the file. Tensors already read stay valid; Read fails afterwards.
func (f *File) Close() (err error) {
	for _, p := range f.parts {
		err = errors.Join(err, p.closer.Close())
	}
	return err
}

// readAt fills buffer from offset. It returns an error if the source ends early.
func readAt(source io.ReaderAt, buffer []byte, offset int64) error {
	_, err := io.ReadFull(io.NewSectionReader(source, offset, int64(len(buffer))), buffer)
	return err
}
