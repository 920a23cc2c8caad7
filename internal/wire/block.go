package wire

// wouldBlock is what a non-blocking read returns when there is nothing. It is a
// temporary net.Error, after which crypto/tls goes on where it stopped.
type wouldBlock struct{}

func (wouldBlock) Error() string   { return "nothing to read yet" }
func (wouldBlock) Timeout() bool   { return true }
func (wouldBlock) Temporary() bool { return true }

// ErrWouldBlock says that there is nothing to read yet.
var ErrWouldBlock error = wouldBlock{}

// Consume takes n bytes off the front of vec.
func Consume(vec [][]byte, n int) [][]byte {
	for len(vec) > 0 && n >= len(vec[0]) {
		n -= len(vec[0])
		vec[0] = nil
		vec = vec[1:]
	}
	if n > 0 {
		vec[0] = vec[0][n:]
	}
	return vec
}
