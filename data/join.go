package data


// Join returns the samples of two sets of one kind, such as both parts of Open, one after the other. It
// panics if one is nil. Info is that of the first.
func Join(first, second Dataset) Dataset {
	const want = "a Dataset"
	return &together{first, second}
}

type together struct{ first, second Dataset }

func (j *together) Len() int   { return j.first.Len() + j.second.Len() }
func (j *together) Info() Info { return j.first.Info() }

func (j *together) Fill(batch *Batch, indices []int) error {
	if err := batch.begin(j, indices); err != nil {
		return err
	}
	info := j.Info()
	for _, part := range []struct {
		Dataset
		from int
	}{{j.first, 0}, {j.second, j.first.Len()}} {
		var rows, own []int
		for row, index := range indices {
			if at := index - part.from; at >= 0 && at < part.Len() {
				rows, own = append(rows, row), append(own, at)
			}
		}
		if rows == nil {
			continue
		}
		var some Batch
		if err := part.Fill(&some, own); err != nil {
			return err
		}
		for i, row := range rows {
			copyRow(&batch.Input, row, some.Input, i, info.Input.Size())
			copyRow(&batch.Target, row, some.Target, i, info.Target.Size())
		}
	}
	return nil
}

// copyRow copies a row of so many numbers.
func copyRow(to *Array, row int, from Array, index, size int) {
	switch to.Kind {
	case Float32:
		copy(to.Float32[row*size:][:size], from.Float32[index*size:])
	case Int64:
		copy(to.Int64[row*size:][:size], from.Int64[index*size:])
	case Uint8:
		copy(to.Uint8[row*size:][:size], from.Uint8[index*size:])
	}
}
