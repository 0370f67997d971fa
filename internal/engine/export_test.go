package engine

import "penstock.example/torch"

// StreamPool opens and closes the streams of a device of which there are so many, given in turn.
func StreamPool(n int64) (open func() (id int64), close func(id int64)) {
	p, given := &streamPool{}, int64(0)
	return func() int64 {
			return p.open(torch.CUDA(0), func() Stream { given++; return Stream{torch.CUDA(0), 1 + given%n} }).id
		},
		func(id int64) { p.close(Stream{torch.CUDA(0), id}) }
}
