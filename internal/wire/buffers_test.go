package wire

import (
	"bytes"
	"testing"
)

// What was read and not taken stays, in order, whatever memory it lies in.
func TestReadBufKeepsWhatWasNotTaken(t *testing.T) {
	t.Parallel()
	for _, read := range []int{1, 7, 100, BufSize - 1, BufSize, largeBufSize} {
		for _, take := range []int{1, 50, BufSize} {
			var b ReadBuf
			in, out := byte(0), byte(0)
			for round := range 3000 {
				b.Room()
				if b.W == len(b.B) {
					t.Fatalf("no room after Room, with %d of %d", b.W, len(b.B))
				}
				n := min(read, len(b.B)-b.W)
				for i := range n {
					b.B[b.W+i] = in
					in++
				}
				b.Filled(n)
				for i := min(take, b.Len()); i > 0; i-- {
					if b.B[b.R] != out {
						t.Fatalf("round %d: %d, want %d", round, b.B[b.R], out)
					}
					b.R++
					out++
				}
				if b.Len() == 0 && round%3 == 0 {
					b.Drop()
				}
				if b.Len() > 1<<20 {
					break
				}
			}
			b.Drop()
			if b.B != nil || b.Len() != 0 {
				t.Error("something is left after Drop")
			}
		}
	}
}

func TestConsume(t *testing.T) {
	t.Parallel()
	const all = "abcdefghi"
	for n := range len(all) + 1 {
		rest := string(bytes.Join(Consume([][]byte{[]byte("abc"), []byte("d"), {}, []byte("efghi")}, n), nil))
		if rest != all[n:] {
			t.Errorf("%d: %q", n, rest)
		}
	}
	if len(Consume(nil, 0)) != 0 {
		t.Error("something of nothing")
	}
}
