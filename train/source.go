package train

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"penstock.example/group"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

// source reads the tensors of a checkpoint. Those in files that this process's directory does not
// have come from the lowest rank that has the file, on request:
//
//	asks   the tensor's number, or done      client ──► server    tagRequest
//	gets   whether it can be read            client ◄── server    tagStatus
//	       its bytes, in pieces              client ◄── server    tagBytes
//
// Each member serves all that may ask it, at the same time as it reads for itself, so that none waits
// for another in a circle.
type source struct {
	c       *Checkpoint
	names   []string // of the files
	tensors []stored
	numbers map[stored]int // of the tensors, without their marks
	here    []bool         // by file: this process's directory has it

	mu     sync.Mutex // guards files
	files  map[string]*safetensors.File
	asking sync.Mutex // one question at a time is under way

	serving sync.WaitGroup
	failed  []error // by rank that was served
}

// stored is a tensor of a checkpoint.
type stored struct{ kind, name string }

// Tags of the messages of sources. No step runs meanwhile.
const (
	tagRequest = group.MaxTag - 1 - iota
	tagStatus
	tagBytes
)

// done is the request of a member that needs no more.
const done = -1

// pieceBytes is the most that is sent at once.
const pieceBytes = 4 << 20

// open begins to read and to serve. The caller closes the source.
func (c *Checkpoint) open() *source {
	s := &source{c: c, names: c.state.names(), numbers: map[stored]int{}, here: c.has[c.peers.rank()],
		files: map[string]*safetensors.File{}, failed: make([]error, c.peers.size())}
	for _, name := range s.names {
		for _, tensor := range slices.Sorted(maps.Keys(c.state.Files[name].Tensors)) {
			t := stored{kindOf(name), tensor}
			s.numbers[t] = len(s.tensors)
			s.tensors = append(s.tensors, t)
		}
	}
	for rank := range c.peers.size() {
		if s.asks(rank, c.peers.rank()) {
			s.serving.Go(func() { s.failed[rank] = s.serve(rank) })
		}
	}
	return s
}

// asks reports whether a member may ask another for a tensor.
func (s *source) asks(client, server int) bool {
	for i := range s.names {
		if !s.c.has[client][i] && s.c.reader(i) == server {
			return true
		}
	}
	return false
}

// close ends reading, waits until nobody asks any more, and returns the first error of serving.
func (s *source) close() (err error) {
	for rank := range s.c.peers.size() {
		if s.asks(s.c.peers.rank(), rank) {
			err = cmp.Or(err, s.request(rank, done))
		}
	}
	s.serving.Wait()
	for _, f := range s.files {
		f.Close() // it was only read
	}
	return cmp.Or(err, cmp.Or(s.failed...))
}

// read returns the elements of a tensor.
func (s *source) read(kind, name string) ([]byte, error) {
	file := slices.IndexFunc(s.names, func(file string) bool {
		_, there := s.c.state.Files[file].Tensors[name]
		return there && kindOf(file) == kind
	})
	if file < 0 {
		return nil, fmt.Errorf("no tensor %q in its %s files", name, kind)
	}
	if s.here[file] {
		return s.readHere(s.names[file], name)
	}
	return s.ask(s.c.reader(file), stored{kind, name}, s.c.state.Files[s.names[file]].Tensors[name])
}

// readHere reads a tensor from a file of this process's directory.
func (s *source) readHere(file, name string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[file]
	if f == nil {
		var err error
		if f, err = safetensors.Open(filepath.Join(s.c.Path, file)); err != nil {
			return nil, err
		}
		s.files[file] = f
	}
	t, err := f.Read(name)
	return t.Data, err
}

// ask gets a tensor from another member.
func (s *source) ask(server int, t stored, mark tensorMark) ([]byte, error) {
	size, err := mark.size()
	if err != nil {
		return nil, err
	}
	s.asking.Lock()
	defer s.asking.Unlock()
	if err := s.request(server, s.numbers[t]); err != nil {
		return nil, err
	}
	status, data := make([]byte, 1), make([]byte, size)
	if err := s.receive(status, server, tagStatus); err != nil {
		return nil, err
	}
	if status[0] != 0 {
		return nil, fmt.Errorf("rank %d cannot read %q", server, t.name)
	}
	return data, s.receive(data, server, tagBytes)
}

// request sends the number of a tensor, or done.
func (s *source) request(server, number int) error {
	return s.send(binary.LittleEndian.AppendUint64(nil, uint64(number)), server, tagRequest)
}

// serve sends a member what it asks for, until it is done.
func (s *source) serve(client int) error {
	var failed error
	for {
		number := make([]byte, 8)
		if err := s.receive(number, client, tagRequest); err != nil {
			return err
		}
		n := int64(binary.LittleEndian.Uint64(number))
		if n == done {
			return failed
		}
		if n < 0 || n >= int64(len(s.tensors)) {
			return fmt.Errorf("rank %d asks for tensor %d of %d", client, n, len(s.tensors))
		}
		t := s.tensors[n]
		data, err := s.read(t.kind, t.name)
		status := []byte{0}
		if err != nil {
			status[0], failed = 1, cmp.Or(failed, err)
		}
		if err := s.send(status, client, tagStatus); err != nil {
			return err
		}
		if err == nil {
			err = s.send(data, client, tagBytes)
			if err != nil {
				return err
			}
		}
	}
}

// send sends bytes to a member, which has to receive as many.
func (s *source) send(data []byte, to, tag int) error {
	return pieces(data, func(c *torch.Ctx, piece []byte) error {
		t := torch.FromBytes(c, piece, torch.Uint8, []int64{int64(len(piece))})
		work, err := s.c.peers.group.Send(t, to, tag)
		if err != nil {
			return err
		}
		return work.Wait()
	})
}

// receive fills into with bytes from a member.
func (s *source) receive(into []byte, from, tag int) error {
	return pieces(into, func(c *torch.Ctx, piece []byte) error {
		t := c.Empty(torch.Uint8, int64(len(piece)))
		work, err := s.c.peers.group.Receive(t, from, tag)
		if err == nil {
			err = work.Wait()
		}
		if err == nil {
			torch.BytesInto(piece, t)
		}
		return err
	})
}

// pieces runs move for one piece of data after the other. What it allocates is charged to no device,
// as it is neither the model's nor that of a step.
func pieces(data []byte, move func(c *torch.Ctx, piece []byte) error) error {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	for piece := range slices.Chunk(data, pieceBytes) {
		var err error
		mark := c.Mark()
		tried := torch.Try(func() { c.Unlimited(func() { err = move(c, piece) }) })
		c.Release(mark)
		if err := cmp.Or(tried, err); err != nil {
			return err
		}
	}
	return nil
}
