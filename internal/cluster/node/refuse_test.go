package node

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-router/sluice/internal/cluster"
	"github.com/sluice-router/sluice/internal/cluster/codec"
	"github.com/sluice-router/sluice/internal/cluster/store"
	"github.com/sluice-router/sluice/internal/rawmessage"
)

// send opens a stream to a member as somebody with that metadata would, sends messages, and
// returns how it ends.
func send(t *testing.T, to *process, md metadata.MD, messages ...[]byte) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(t.Context(), md), within)
	defer cancel()
	cc, err := to.dial(to.Self().Address)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	s, err := cc.NewStream(ctx, &sendDesc, sendMethod, grpc.MaxCallSendMsgSize(1<<30))
	if err != nil {
		return err
	}
	for _, m := range messages {
		if err := s.SendMsg(&rawmessage.Message{Data: mem.BufferSlice{mem.SliceBuffer(m)}}); err != nil {
			break // the end tells why
		}
	}
	return s.RecvMsg(&rawmessage.Message{})
}

func TestWhoCannotBeAMemberIsToldWhy(t *testing.T) {
	w := newWorld(t)
	p := w.start("a", nil)
	self := p.Self()
	hello := func(change ...string) metadata.MD {
		md := metadata.Pairs("sluice-cluster", "test", "sluice-name", "z", "sluice-from", "00000000000000ff", "sluice-to", self.Incarnation.String(), "sluice-versions", "1-1")
		for i := 0; i < len(change); i += 2 {
			md.Set(change[i], change[i+1])
		}
		return md
	}
	unknown := []byte{0xf8, 0x0f, 1} // field 255
	for _, c := range []struct {
		name     string
		md       metadata.MD
		messages [][]byte
		code     codes.Code
		says     string
		logs     string
	}{
		{name: "another cluster", md: hello("sluice-cluster", "other"), code: codes.FailedPrecondition, says: `of the cluster "test", not of "other"`, logs: "--cluster-name"},
		{name: "no common version", md: hello("sluice-versions", "7-9"), code: codes.FailedPrecondition, says: `speaks the versions 1 to 1 of the protocol of clusters, and "z" 7 to 9`, logs: "7 to 9"},
		{name: "another start", md: hello("sluice-to", "00000000000000aa"), code: codes.NotFound, says: self.Incarnation.String()},
		{name: "itself", md: hello("sluice-from", self.Incarnation.String()), code: codes.FailedPrecondition, says: "--cluster-advertise"},
		{name: "no names", md: metadata.MD{}, code: codes.InvalidArgument, says: "does not say"},
		{name: "nonsense", md: hello("sluice-from", "x"), code: codes.InvalidArgument, says: "does not say"},
		{name: "an unknown field", md: hello(), messages: [][]byte{unknown}, code: codes.InvalidArgument, says: "field 255", logs: "field 255"},
		{name: "no envelope", md: hello(), messages: [][]byte{[]byte("GET / HTTP/1.1")}, code: codes.InvalidArgument, logs: "cannot be read"},
		{name: "too large", md: hello(), messages: [][]byte{make([]byte, codec.MaxMessage+1)}, code: codes.ResourceExhausted, logs: "too large"},
		{name: "a name that is taken", md: hello(), code: codes.FailedPrecondition, says: "a member named a answers already", messages: [][]byte{encoded(t, &cluster.Envelope{
			From: 0xff, To: self.Incarnation, Stamp: 1, Control: []cluster.Control{{Kind: cluster.ControlHello, Members: []cluster.Member{{Name: "a", Incarnation: 0xff, Address: self.Address, Versions: cluster.Versions{Min: 1, Max: 1}}}}},
		})}},
		{name: "of another", md: hello(), messages: [][]byte{encoded(t, &cluster.Envelope{From: 3})}, code: codes.InvalidArgument, logs: "on the stream of"},
	} {
		err := send(t, p, c.md, c.messages...)
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.logs != "" {
			p.log.says(t, c.logs)
		}
	}
	if n := strings.Count(p.log.String(), "--cluster-name"); n != 1 {
		t.Errorf("it is told %d times", n)
	}
}

func encoded(t *testing.T, e *cluster.Envelope) []byte {
	b, err := codec.NewWriter().Append(nil, e)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A stream takes the place of an older one of the same member.
func TestANewerStreamCounts(t *testing.T) {
	w := newWorld(t)
	p := w.start("a", nil)
	md := metadata.Pairs("sluice-cluster", "test", "sluice-name", "z", "sluice-from", "00000000000000ff", "sluice-to", p.Self().Incarnation.String(), "sluice-versions", "1-1")
	open := func() grpc.ClientStream {
		cc, err := p.dial(p.Self().Address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cc.Close() })
		s, err := cc.NewStream(metadata.NewOutgoingContext(t.Context(), md), &sendDesc, sendMethod)
		if err == nil {
			_, err = s.Header()
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	older := open()
	open()
	if err := older.SendMsg(&rawmessage.Message{Data: mem.BufferSlice{mem.SliceBuffer(encoded(t, &cluster.Envelope{From: 0xff}))}}); err != nil {
		t.Fatal(err)
	}
	if err := older.RecvMsg(&rawmessage.Message{}); status.Code(err) != codes.Aborted {
		t.Fatal(err)
	}
}

// Members with the secret find each other; one with another secret, or without, is refused
// on both sides, and nobody else is disturbed.
func TestAnotherSecret(t *testing.T) {
	t.Parallel()
	const secret, other = "a secret of some length", "another secret of that length"
	w := newWorld(t)
	with := func(s string) func(*Options) {
		return func(o *Options) { o.Security.Secret = s }
	}
	a, b := w.start("a", with(secret)), w.start("b", with(secret))
	w.keeperOf(a, b)
	c, d := w.start("c", with(other)), w.start("d", nil)
	for _, wrong := range []*process{c, d} {
		if err := send(t, wrong, nil); err == nil { // by its own rules
			t.Error("a stream without metadata is accepted")
		}
	}
	for _, wrong := range []*process{c, d} {
		eventually(t, "the error of the record", func() bool { return strings.Contains(wrong.Status().StoreError, "another secret") })
		wrong.log.says(t, "another secret")
		wrong.log.says(t, "the keeper of the cluster does not take this process")
		cc, err := wrong.dial(a.Self().Address)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), within)
		if _, err := cc.NewStream(ctx, &sendDesc, sendMethod); err == nil {
			t.Error("a stream is opened")
		}
		cancel()
		cc.Close()
	}
	a.log.says(t, "a connection to the cluster's port was refused")
	// They do not take the office of members that are gone.
	a.Close()
	w.keeperOf(b)
	for _, wrong := range []*process{c, d} {
		if wrong.Status().Role == cluster.RoleKeeper {
			t.Error("it is the keeper")
		}
	}
	a = b
	for _, l := range []*logged{a.log, b.log, c.log, d.log} {
		if strings.Contains(l.String(), secret) || strings.Contains(l.String(), other) {
			t.Error("a secret is in a log")
		}
	}
	a.acquire(t).Close()
	b.acquire(t).Close()
}

// certificate writes a certificate for 127.0.0.1 of an authority, and returns its files.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	file string
}

func newAuthority(t *testing.T) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := x509.ParseCertificate(der)
	a := &authority{key: key, cert: cert, file: filepath.Join(t.TempDir(), "ca.pem")}
	writePEM(t, a.file, "CERTIFICATE", der)
	return a
}

func writePEM(t *testing.T, file, kind string, der []byte) {
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (a *authority) security(t *testing.T) Security {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "member"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := Security{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), CA: a.file}
	writePEM(t, s.Cert, "CERTIFICATE", der)
	writePEM(t, s.Key, "PRIVATE KEY", k)
	return s
}

// Members with certificates of one authority find each other; another authority's do not.
func TestCertificates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ours, theirs := newAuthority(t), newAuthority(t)
	with := func(a *authority) func(*Options) {
		s := a.security(t)
		return func(o *Options) { o.Security = s }
	}
	a, b, c := w.start("a", with(ours)), w.start("b", with(ours)), w.start("c", with(theirs))
	w.keeperOf(a, b)
	c.log.says(t, "no connection to a member")
	b.acquire(t).Close()

	if _, err := w.make("d", func(o *Options) { o.Security = Security{Cert: "/nowhere", Key: "/nowhere", CA: "/nowhere"} }); err == nil || !strings.Contains(err.Error(), "--cluster-tls-cert-file") {
		t.Errorf("files that are missing: %v", err)
	}
}

// A store that cannot be reached is an error only if it is required.
func TestAStoreThatIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.SetDown(true)
	p := w.start("a", nil)
	if err := p.Start(t.Context(), true); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("it is required: %v", err)
	}
	eventually(t, "the error in the status", func() bool { return p.Status().StoreError != "" })
	w.store.SetDown(false)
	w.keeperOf(p)
}
