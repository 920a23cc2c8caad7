package redis

import (
	"context"
	"errors"
	"net"
	"testing"
)

// A call that ends while its connection fails closes that connection, and no other: it may
// have been dropped already.
func TestACallEndsWhileItsConnectionFails(t *testing.T) {
	for range 2000 {
		near, far := net.Pipe()
		s := &Store{conn: near, answers: &bounded{Conn: near}}
		ctx, cancel := context.WithCancel(t.Context())
		err := s.use(ctx, func() error {
			cancel()
			return errors.New("the connection failed")
		})
		if err == nil || s.conn != nil {
			t.Fatalf("error %v, connection %v", err, s.conn)
		}
		far.Close()
	}
}
