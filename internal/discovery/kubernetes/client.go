package kubernetes

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/sluice-router/sluice/internal/kubeapi"
)

// The kinds that are read. No others are in the scheme, so that what they need is not in
// the binary.
var codecs = sync.OnceValue(func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.PodList{})
	scheme.AddKnownTypes(discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	metav1.AddToGroupVersion(scheme, discoveryv1.SchemeGroupVersion)
	return serializer.NewCodecFactory(scheme)
})

// clients ask one API server.
type clients struct {
	http         *http.Client
	core, slices rest.Interface
	address      string
}

// newClients makes the clients. cfg is changed. ping is pingAfter.
func newClients(cfg *rest.Config, userAgent string, ping time.Duration) (*clients, error) {
	cfg.NegotiatedSerializer = codecs().WithoutConversion()
	cfg.ContentType = runtime.ContentTypeJSON
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &limited{next} })
	c, err := kubeapi.NewClient(cfg, userAgent, ping)
	if err != nil {
		return nil, err
	}
	of := func(path string, gv schema.GroupVersion) (rest.Interface, error) {
		one := *cfg
		one.APIPath, one.GroupVersion = path, &gv
		return rest.RESTClientForConfigAndClient(&one, c)
	}
	core, err := of("/api", corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	slices, err := of("/apis", discoveryv1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	return &clients{http: c, core: core, slices: slices, address: cfg.Host}, nil
}

// pingAfter is how long an HTTP/2 connection may be silent before the server is asked for
// a sign of life, which may take half as long. A server that is frozen says nothing of
// what is deleted through another one meanwhile.
const pingAfter = 10 * time.Second

// closeIdle closes the connections that carry no request. One on which a request was given
// up is among them, so that the next one takes another.
func (c *clients) closeIdle() { kubeapi.CloseIdle(c.http) }

// maxAnswer bounds one answer but for the events of a watch, which client-go bounds one
// by one at 16 MiB.
const maxAnswer = 256 << 20

// limited bounds the answers of a server, and notes when it asks for a pause: what
// client-go makes of an answer with a Status in it does not tell.
type limited struct{ next http.RoundTripper }

// askedPause is where a request notes for how long its server asks to be left alone. It
// is in the request's context.
type askedPause struct{ wait time.Duration }

type askedPauseKey struct{}

// RoundTrip implements http.RoundTripper.
func (l *limited) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(r)
	if err != nil {
		return resp, err
	}
	if asked, ok := r.Context().Value(askedPauseKey{}).(*askedPause); ok && resp.StatusCode >= 400 {
		if secs, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 20); err == nil {
			asked.wait = time.Duration(secs) * time.Second
		}
	}
	if r.URL.Query().Get("watch") != "true" || resp.StatusCode != http.StatusOK {
		resp.Body = &limitedBody{ReadCloser: resp.Body, left: maxAnswer}
	}
	return resp, nil
}

// WrappedRoundTripper lets client-go find the transport, to close its connections.
func (l *limited) WrappedRoundTripper() http.RoundTripper { return l.next }

type limitedBody struct {
	io.ReadCloser
	left int64
}

func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the answer of the API server is larger than %d bytes", maxAnswer)
	}
	return n, err
}
