package redis_test

import (
	"bufio"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/cluster/store"
)

// A server that announces more than a record can be is an error, and takes no memory.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"a string of 2^62 bytes":    "$4611686018427387904\r\n",
		"a string of 64 GiB":        "$68719476736\r\n",
		"a string beyond any":       "$99999999999999999999999999\r\n",
		"a long number":             "$" + strings.Repeat("0", 100) + "68719476736\r\n",
		"a list of 2^40 elements":   "*1099511627776\r\n",
		"a large list in a list":    "*1\r\n*1099511627776\r\n",
		"behind a string":           "*2\r\n$4\r\n$1\r\n\r\n$68719476736\r\n",
		"endless lists in lists":    strings.Repeat("*1\r\n", 1<<20),
		"many small strings":        "*16\r\n" + strings.Repeat("*16\r\n", 1<<20),
		"a string that is too long": "*1\r\n$8388608\r\n" + strings.Repeat("x", 8<<20) + "\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			defer func() { l.Close(); <-done }()
			go func() {
				defer close(done)
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					if _, err := bufio.NewReader(c).ReadString('\n'); err == nil {
						_, _ = c.Write([]byte(answer))
					}
					c.Close()
				}
			}()
			s := open(t, "redis://"+l.Addr().String(), "gate")
			defer s.Close()
			if _, err := s.Read(t.Context()); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "too large") && !strings.Contains(err.Error(), "reset") {
				t.Errorf("%v", err)
			}
		})
	}
}
