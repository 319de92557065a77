// Preload (node --import) that keeps a server which offers no host option on
// loopback, and prints the address it really got, so that PORT=0 is usable.
import net from 'node:net';

const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (port, ...rest) {
  this.once('listening', () => console.log(`loopback: 127.0.0.1:${this.address().port}`));
  return listen.call(this, port, '127.0.0.1', ...rest);
};
